// The update on a GPU: launches the kernels of built-in and custom rules.

#include <cmath>

#include "kernels/system/error.h"
#include "optim/update/update_cuda.h"
#include "optim/update/update_quantised_cuda.h"
#include "optim/update/update_tables.h"

namespace aliquot {
namespace {

void update(Stream& stream, const UpdateArgs& args, const UpdateStep& step) {
  check_dtypes(args, step.rule);
  if (!std::isfinite(step.gradient_factor) || args.count == 0 || args.segment_count == 0) return;
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

void compare(Stream&, const UpdateArgs&, int64_t) {
  throw UnavailableError("digests of training state are supported only on hosts");
}

}  // namespace

const UpdateKernels& cuda_update_kernels() {
  static constexpr UpdateKernels kKernels{update, compare};
  return kKernels;
}

}  // namespace aliquot
