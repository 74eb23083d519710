#pragma once
// The meshes of 8 ranks.

#include <fmt/format.h>
#include <string>
#include <vector>

namespace aliquot::test {

inline constexpr int kMeshRanks = 8;

struct MeshSizes {
  int pipeline, replicas, shards, tensor;

  int rank_count() const { return pipeline * replicas * shards * tensor; }
  std::string text() const { return fmt::format("mesh {}x{}x{}x{}", pipeline, replicas, shards, tensor); }
};

/// Returns all 20 meshes.
inline std::vector<MeshSizes> meshes_of_8_ranks() {
  std::vector<MeshSizes> all;
  for (int p = 1; p <= kMeshRanks; p *= 2) {
    for (int r = 1; p * r <= kMeshRanks; r *= 2) {
      for (int s = 1; p * r * s <= kMeshRanks; s *= 2) all.push_back({p, r, s, kMeshRanks / (p * r * s)});
    }
  }
  return all;
}

}  // namespace aliquot::test
