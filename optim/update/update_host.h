#pragma once
// The host's update: which loop serves which rule, dtype and instruction set. For optim's own sources, tests and
// benches.

#include <array>
#include <cstdint>

#include "kernels/elementwise/host_loops.h"
#include "kernels/formats/philox.h"
#include "optim/update/update_tables.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// A run of elements of one segment; the pointers are at its first element.
struct UpdateRun {
  const void* gradient;
  Master master;
  void* states[kMaxStates];
  int64_t count;
  float gradient_factor, lr_scale, decay_scale;
  Rounding rounding;
  RandomKey key;
  int64_t global_offset;
};

/// Runs one. `rule` points at the rule's own type, for which the function was chosen.
using RunFunction = void (*)(const void* rule, const UpdateRun&);

using RunsByMoments = std::array<RunFunction, 3>;   // fp32, bf16, codes; null: the rule cannot
using RunsByMaster = std::array<RunsByMoments, 4>;  // whole, whole and bf16 copy, whole and fp16 copy, split
using RunsOfRule = std::array<RunsByMaster, 2>;     // by gradient: fp32, bf16
/// By the index of the rule in Rule.
using UpdateRuns = std::array<RunsOfRule, kBuiltInRules>;

/// The loops compiled for an instruction set, which must be one of available_isas().
const UpdateRuns& update_runs(Isa isa);
const UpdateRuns& update_runs_plain();
const UpdateRuns& update_runs_avx2();
const UpdateRuns& update_runs_avx512();

/// The part [begin, end) of a step, both multiples of kBlockElements or the shard's end, on the calling thread.
void update_range(Isa isa, const UpdateArgs& args, const UpdateStep& step, int64_t begin, int64_t end);

}  // namespace aliquot
#pragma GCC visibility pop
