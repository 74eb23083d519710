#include "optim/update/update_host.h"

#include "kernels/device/host_stream.h"

namespace aliquot {
namespace {

// Threads get multiples of this many elements (16 KiB of fp32), so that two threads do not write to the same page.
constexpr int64_t kGrainElements = 16 * kBlockElements;

void update(Stream& stream, const UpdateArgs& args, const UpdateStep& step) {
  HostStream& host_stream = as_host_stream(stream);
  host_stream.run([&args, step, &pool = host_stream.pool()] {
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
