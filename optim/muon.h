#pragma once
// Muon (Jordan et al. 2024), with torch.optim.Muon's meaning: a matrix moves along its momentum made orthogonal.
//
// Unlike every other rule it needs a whole matrix in one place, so a step over shards has three parts. Each is here; what
// moves bytes between ranks is the engine's:
//   1. On every rank, over its own shard: an update with muon_blend_rule(), whose "master" is a whole fp32 buffer of
//      the shard's size (what it held does not matter) and whose one state is the momentum. It leaves in the buffer
//      what is to be made orthogonal.
//   2. The engine gathers each matrix's part of those buffers to the matrix's owner, row-major and without padding, by
//      assign_matrices(). The owner calls orthogonalize(). The engine scatters the result back to where it came from.
//   3. On every rank, over its own shard: an update with muon_apply_rule(), whose fp32 gradient is that result and whose
//      gradient_factor is 1 (NaN when part 1 was skipped). It keeps no state.
// Parts 1 and 3 work element by element, and part 2 on whole matrices, so no cut into shards and no choice of owners
// changes a bit. What is not a matrix, and what a model's author would not call one (embeddings, the last layer), is
// for Muon::rest, in segments of its own.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/thread_pool.h"
#include "optim/optimizer.h"
#include "optim/rule.h"

namespace aliquot {

/// What the rate is multiplied by: sqrt(max(1, rows / columns)), or 0.2 sqrt(max(rows, columns)), which makes steps as
/// large as AdamW's, so that AdamW's rate and decay serve.
enum class MuonRate : uint8_t { kOriginal, kAsAdamW };

struct Muon {
  float lr = 1e-3f, momentum = 0.95f, weight_decay = 0.1f;
  bool nesterov = true;
  int iterations = 5;  // of Newton and Schulz
  float eps = 1e-7f;
  MuonRate rate = MuonRate::kOriginal;
  AdamW rest = {};  // for everything else
};

struct MatrixShape {
  int64_t rows, columns;
};

/// Throws UsageError, naming the option, when one is out of its range.
void check(const Muon& muon);

/// Whether Muon can take a tensor of that shape: two dimensions, neither empty.
bool is_matrix(std::span<const int64_t> shape);

/// What a matrix keeps between steps: the state of part 1.
StateSpec muon_state(DType moments = DType::kFloat32);

/// The rules of parts 1 and 3; `lr` is what the schedule gives for the step. A segment's lr_scale and decay_scale count
/// in part 3.
Rule muon_blend_rule(const Muon& muon);
Rule muon_apply_rule(const Muon& muon, double lr);

/// Multiply-adds of orthogonalize().
double orthogonalize_work(const MatrixShape& shape, int iterations);

/// Each matrix's owner in [0, owner_count): the largest first, each to the owner with the least work so far, ties to
/// the lower index. No owner has more than 4/3 of the least possible greatest load (Graham 1969). Depends on the
/// shapes and their order alone.
std::vector<int32_t> assign_matrices(std::span<const MatrixShape> shapes, int owner_count, int iterations = 5);

/// What orthogonalize() works in; made once for the largest matrix, it then allocates nothing.
class MuonScratch {
 public:
  explicit MuonScratch(const MatrixShape& largest) { reserve(largest); }
  void reserve(const MatrixShape& shape);
  static int64_t size_bytes(const MatrixShape& shape);

 private:
  friend void orthogonalize(float*, const MatrixShape&, const Muon&, MuonScratch&, ThreadPool&);
  std::vector<float> wide_, across_, square_, product_;
};

/// Replaces `matrix`, row-major, by U S' V^T with S' near 1 (by `iterations` steps of the quintic iteration of Newton and
/// Schulz, 3.4445, -4.7750, 2.0315, from the matrix divided by its Frobenius norm or eps), times what Muon::rate says. In
/// fp32, every sum in one order: the same bits for any number of threads and any instruction set. Runs on the caller
/// and the pool. A matrix of zeros stays one.
void orthogonalize(float* matrix, const MatrixShape& shape, const Muon& muon, MuonScratch& scratch, ThreadPool& pool);

}  // namespace aliquot
