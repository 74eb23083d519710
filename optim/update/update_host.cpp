#include "optim/update/update_host.h"

#include "kernels/device/host_stream.h"

namespace aliquot {
namespace {

// A thread takes at least this much, and pages are not shared out between two of them.
constexpr int64_t kGrainElements = 16 * kBlockElements;

void update(Stream& stream, const UpdateArgs& args, const UpdateStep& step) {
  HostStream& on = as_host_stream(stream);
  on.run([&args, step, &pool = on.pool()] {
    pool.for_ranges(args.count, kGrainElements,
                    [&](int64_t begin, int64_t end) { update_range(best_isa(), args, step, begin, end); });
  });
}

}  // namespace

const UpdateKernels& host_update_kernels() {
  static constexpr UpdateKernels kKernels{update};
  return kKernels;
}

}  // namespace aliquot
