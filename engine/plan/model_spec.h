#pragma once
// What a model is, to the planner: units of parameters and the order they are used in.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/activations.h"
#include "sharding/layout.h"

#pragma GCC visibility push(default)
namespace aliquot {

using UnitId = int32_t;

/// What a unit's gradient kernels do to the memory they are handed: add to what is there (it starts as zeros), or write it.
enum class GradientMode : uint8_t { kAdd, kAssign };

struct ParameterSpec {
  TensorSpec tensor;  // its name is the parameter's full name
  bool decayed = true;
  float lr_scale = 1.0f, decay_scale = 1.0f;
  bool matrix = true;  // an optimizer of whole matrices may take it, if it is one
};

/// What is gathered together: a transformer block.
struct UnitSpec {
  std::string name;
  std::vector<ParameterSpec> parameters;
  GradientMode gradients = GradientMode::kAdd;
};

/// `uses` is the order of forward: in each use the units named are whole together; a unit may be used again (a tied
/// embedding). Backward is the same order reversed.
struct ModelSpec {
  std::vector<UnitSpec> units;
  std::vector<std::vector<UnitId>> uses;
  ActivationSpec activations = {};

  /// Throws UsageError, naming unit and parameter, for names used twice, a unit never used, a use of nothing, of a unit
  /// that is not there or of one unit twice, and for activations of other uses than there are.
  void check() const;
};

/// Parameters of one unit that can share a flat buffer: one element type, all trainable or none, all updated as whole
/// matrices or none.
struct FlatSpec {
  UnitId unit;
  std::vector<int32_t> parameters;  // indices in the unit, in its order
  bool trainable;
  FlatLayout layout;
  bool matrices = false;
};

/// One rank's part of it, kept as `dtype`.
inline int64_t shard_bytes(const FlatSpec& flat, DType dtype) {
  return flat.layout.shard_count() * element_bytes(dtype);
}

/// The flat buffers of every unit over the `rank_count` ranks of each of `replica_count` replicas, in the order of units.
/// `matrices_apart`: the optimizer takes matrices whole. `red_zone_blocks`: as FlatLayout has them.
std::vector<FlatSpec> flats(const ModelSpec& model, int rank_count, int replica_count = 1, bool matrices_apart = false,
                            int64_t red_zone_blocks = 0);

}  // namespace aliquot
#pragma GCC visibility pop
