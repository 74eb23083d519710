#include "kernels/device/time_marks.h"

#include <algorithm>
#include <vector>

#include "kernels/system/seconds.h"

namespace aliquot {
namespace {

/// Each mark is a task of its stream.
class HostTimeMarks final : public TimeMarks {
 public:
  explicit HostTimeMarks(std::size_t count) : seconds_(count, 0.0) {}

  void set(Stream& stream, std::size_t mark) override {
    stream.run([at = &seconds_[mark]] { *at = now_seconds(); });
  }
  void read(std::span<double> seconds) override { std::ranges::copy(seconds_, seconds.begin()); }

 private:
  std::vector<double> seconds_;
};

}  // namespace

std::unique_ptr<TimeMarks> make_time_marks(Device& device, std::size_t count) {
  if (device.kind() == DeviceKind::kCuda) return make_cuda_time_marks(device, count);
  return std::make_unique<HostTimeMarks>(count);
}

}  // namespace aliquot
