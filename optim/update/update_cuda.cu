// The update on a GPU: launches the kernels of built-in and custom rules.

#include <cmath>

#include "kernels/system/error.h"
#include "optim/update/state_digests_cuda.h"
#include "optim/update/update_cuda.h"
#include "optim/update/update_quantised_cuda.h"
#include "optim/update/update_tables.h"

namespace aliquot {
namespace {

void change(Stream& stream, const UpdateArgs& args, const UpdateStep& step) {
  if (args.moments == DType::kUInt8) {
    return launch_quantised_update(stream, args, step, std::get<AdamWRule>(step.rule));
  }
  std::visit(
      [&](const auto& rule) {
        if constexpr (std::is_same_v<std::decay_t<decltype(rule)>, CustomRule>) {
          if (rule.cuda == nullptr) {
            throw UnavailableError(
                "this custom rule supports only hosts: pass custom_cuda<Rule>() to custom_optimizer()");
          }
          rule.cuda(stream, args, step, rule.constants);
        } else {
          launch_update(stream, args, step, rule);
        }
      },
      step.rule);
}

/// After a difference, the update runs all the same, because the host learns of the difference later.
void update(Stream& stream, const UpdateArgs& args, const UpdateStep& step) {
  check_dtypes(args, step.rule);
  if (args.count == 0 || args.segment_count == 0) return;
  if (args.check != nullptr) compare_digests(stream, args, step.reported_step);
  if (!std::isfinite(step.gradient_factor)) return;
  change(stream, args, step);
  if (args.check != nullptr) record_digests(stream, args);
}

}  // namespace

const UpdateKernels& cuda_update_kernels() {
  static constexpr UpdateKernels kKernels{update, compare_digests, record_digests};
  return kKernels;
}

}  // namespace aliquot
