#pragma once
// Muon (Jordan et al. 2024), like torch.optim.Muon: each matrix moves along its orthogonalized momentum.
//
// Unlike other rules, Muon needs full matrices, so a step over shards has three parts. This module computes the
// parts, and the engine moves data between ranks:
//   1. Each rank runs an update of its shard with muon_blend_rule(). The "master" of this update is an fp32 buffer of
//      the shard's size. The update overwrites the buffer with the input of part 2. The only state is the momentum.
//   2. The engine gathers each matrix from these buffers to the owner of the matrix (assign_matrices()), row-major and
//      without padding. The owner orthogonalizes it (optim/muon/orthogonalize.h). The engine scatters the result back.
//   3. Each rank updates its shard with muon_apply_rule(). The gradient of this update is the result of part 2, in
//      fp32. gradient_factor is 1, or NaN if part 1 was skipped. This update has no state.
// Parts 1 and 3 process each element independently, and part 2 processes full matrices. So neither the sharding nor the
// choice of owners changes results.

#include <cstdint>
#include <span>
#include <vector>

#include "optim/optimizer.h"
#include "optim/rule.h"

namespace aliquot {

/// Returns whether Muon can update a tensor of this shape: it has two dimensions, and neither is 0.
bool is_matrix(std::span<const int64_t> shape);

/// Returns the optimizer state of a matrix, which part 1 updates: the momentum.
StateSpec muon_state(DType moments = DType::kFloat32);

/// Return the rules of parts 1 and 3. `lr` is the learning rate of Muon::rest that the schedule gives for the step.
/// Part 3 applies the lr_scale and the decay_scale of segments.
Rule muon_blend_rule(const Muon& muon);
Rule muon_apply_rule(const Muon& muon, double lr);

/// Returns the learning rate of matrices in a step in which Muon::rest has the learning rate `lr`.
double matrix_learning_rate(const Muon& muon, double lr);

/// Returns the number of multiply-adds to orthogonalize one matrix.
double orthogonalize_multiply_adds(const MatrixShape& shape, int iterations);

/// Returns the owner, in [0, owner_count), of each matrix. Assigns matrices in order of decreasing work, each to the
/// owner with the least work so far, or the lowest index among equals. The largest load is at most 4/3 of the optimum
/// (Graham 1969). The result depends only on the shapes and their order.
std::vector<int32_t> assign_matrices(std::span<const MatrixShape> shapes, int owner_count, int iterations = 5);

}  // namespace aliquot
