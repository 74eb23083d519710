#pragma once
// The host update: tables of the loops for each rule, dtype and instruction set. For optim/, tests and benchmarks.

#include <array>
#include <cstdint>

#include "kernels/elementwise/host_loops.h"
#include "kernels/formats/philox.h"
#include "optim/update/update_tables.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Consecutive elements of one segment. The pointers point to the first of these elements.
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

/// Updates one run. `rule` must point to an object of the rule type of the function.
using RunFunction = void (*)(const void* rule, const UpdateRun&);

/// The functions for fp32, bf16 and 8-bit moments. A function is null if the rule does not support such moments.
using RunsByMoments = std::array<RunFunction, 3>;
/// For each kind of master: fp32 without copy, fp32 with a bf16 copy, fp32 with an fp16 copy, and split.
using RunsByMaster = std::array<RunsByMoments, 4>;
using RunsOfRule = std::array<RunsByMaster, 2>;  // for fp32 gradients, and for bf16 gradients
/// For each built-in rule, in the order of the alternatives of Rule.
using UpdateRuns = std::array<RunsOfRule, kBuiltInRules>;

/// Returns the loops for an instruction set, which must be one of available_isas().
const UpdateRuns& update_runs(Isa isa);
const UpdateRuns& update_runs_plain();
const UpdateRuns& update_runs_avx2();
const UpdateRuns& update_runs_avx512();

/// Updates elements [begin, end) of the shard on the calling thread. Both must be multiples of kBlockElements or the
/// end of the shard.
void update_range(Isa isa, const UpdateArgs& args, const UpdateStep& step, int64_t begin, int64_t end);

}  // namespace aliquot
#pragma GCC visibility pop
