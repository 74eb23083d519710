#pragma once
// Muon (Jordan et al. 2024), with torch.optim.Muon's meaning: a matrix moves along its momentum made orthogonal.
//
// Unlike every other rule it needs a whole matrix in one place, so a step over shards has three parts. Each is here; what
// moves bytes between ranks is the engine's:
//   1. On every rank, over its own shard: an update with muon_blend_rule(), whose "master" is a whole fp32 buffer of
//      the shard's size (what it held does not matter) and whose one state is the momentum. It leaves in the buffer
//      what is to be made orthogonal.
//   2. The engine gathers each matrix's part of those buffers to the matrix's owner, row-major and without padding, by
//      assign_matrices(). The owner makes it orthogonal (optim/muon/orthogonalize.h). The engine scatters the result back to
//      where it came from.
//   3. On every rank, over its own shard: an update with muon_apply_rule(), whose fp32 gradient is that result and whose
//      gradient_factor is 1 (NaN when part 1 was skipped). It keeps no state.
// Parts 1 and 3 work element by element, and part 2 on whole matrices, so no cut into shards and no choice of owners
// changes a bit.

#include <cstdint>
#include <span>
#include <vector>

#include "optim/optimizer.h"
#include "optim/rule.h"

namespace aliquot {

/// Whether Muon can take a tensor of that shape: two dimensions, neither empty.
bool is_matrix(std::span<const int64_t> shape);

/// What a matrix keeps between steps: the state of part 1.
StateSpec muon_state(DType moments = DType::kFloat32);

/// The rules of parts 1 and 3; `lr` is what the schedule gives for the step, the rest's. A segment's lr_scale and decay_scale
/// count in part 3.
Rule muon_blend_rule(const Muon& muon);
Rule muon_apply_rule(const Muon& muon, double lr);

/// The rate of matrices where the rest's is `lr`.
double matrix_learning_rate(const Muon& muon, double lr);

/// Multiply-adds of making one orthogonal.
double orthogonalize_multiply_adds(const MatrixShape& shape, int iterations);

/// Each matrix's owner in [0, owner_count): the largest first, each to the owner with the least work so far, ties to
/// the lower index. No owner has more than 4/3 of the least possible greatest load (Graham 1969). Depends on the
/// shapes and their order alone.
std::vector<int32_t> assign_matrices(std::span<const MatrixShape> shapes, int owner_count, int iterations = 5);

}  // namespace aliquot
