#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>

#include "optim/custom_loops.h"
#include "optim/update/stochastic.h"
#include "optim/update/update_host.h"

namespace aliquot {
namespace {

size_t dtype_index(DType dtype) { return dtype == DType::kUInt8 ? 2 : (dtype == DType::kBFloat16 ? 1 : 0); }

size_t master_index(const Master& master) {
  if (master.whole == nullptr) return 3;
  if (master.copy == nullptr) return 0;
  return master.copy_dtype == DType::kBFloat16 ? 1 : 2;
}

RunFunction choose_run_function(Isa isa, const UpdateArgs& args, const Rule& rule) {
  check_dtypes(args, rule);
  const auto* custom = std::get_if<CustomRule>(&rule);
  const RunsOfRule& runs = custom != nullptr ? custom->loops->host(isa) : update_runs(isa)[rule.index()];
  return runs[dtype_index(args.gradient_dtype)][master_index(args.master)][dtype_index(args.moments)];
}

/// Returns the pointer for the parameter `rule` of a RunFunction.
const void* rule_constants(const Rule& rule) {
  if (const auto* custom = std::get_if<CustomRule>(&rule)) return custom->constants;
  return std::visit([](const auto& of_step) -> const void* { return &of_step; }, rule);
}

/// `from + offset`, or null if `from` is null.
template <typename T>
T* at(T* from, int64_t offset) {
  return from == nullptr ? nullptr : from + offset;
}

template <typename T>
T* at_bytes(T* from, int64_t offset_bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return at(static_cast<Byte*>(from), offset_bytes);
}

UpdateRun make_run(const UpdateArgs& args, const UpdateStep& step, const Segment& segment, int64_t begin, int64_t end) {
  UpdateRun run{.gradient = at_bytes(args.gradient, begin * element_bytes(args.gradient_dtype)),
                .master = args.master,
                .states = {},
                .count = end - begin,
                .gradient_factor = step.gradient_factor,
                .lr_scale = segment.lr_scale,
                .decay_scale = segment.decay_scale,
                .rounding = args.rounding,
                .key = rounding_key(step.seed, step.step, segment.parameter),
                .global_offset = segment.global_offset + (begin - segment.offset)};
  run.master.whole = at(args.master.whole, begin);
  run.master.copy = at_bytes(args.master.copy, begin * 2);
  run.master.high = at(args.master.high, begin);
  run.master.low = at(args.master.low, begin);
  for (int i = 0; i < kMaxStates; ++i) {
    run.states[i] = at_bytes(args.states[i], state_offset_bytes(args.moments, i, begin));
  }
  return run;
}

}  // namespace

void update_range(Isa isa, const UpdateArgs& args, const UpdateStep& step, int64_t begin, int64_t end) {
  if (!std::isfinite(step.gradient_factor)) return;
  const RunFunction run = choose_run_function(isa, args, step.rule);
  const void* const rule = rule_constants(step.rule);
  const Segment* const last = args.segments + args.segment_count;
  const Segment* segment =
      std::partition_point(args.segments, last, [begin](const Segment& s) { return s.offset + s.count <= begin; });
  for (; segment != last && segment->offset < end; ++segment) {
    const int64_t from = std::max(begin, segment->offset);
    const int64_t to = std::min(end, segment->offset + segment->count);
    run(rule, make_run(args, step, *segment, from, to));
  }
}

}  // namespace aliquot
