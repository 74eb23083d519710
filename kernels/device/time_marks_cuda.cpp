#include <memory>
#include <vector>

#include "kernels/device/device_cuda.h"
#include "kernels/device/time_marks.h"
#include "kernels/system/seconds.h"

namespace aliquot {
namespace {

/// Each mark is a timed event. A reference event, which passes while read() runs, relates the clock of the GPU to that
/// of the host. CUDA returns differences in milliseconds as a float, so recent marks have the most exact times.
class CudaTimeMarks final : public TimeMarks {
 public:
  CudaTimeMarks(CudaDevice& device, std::size_t count)
      : stream_(device.make_stream(Lane::kIo)), reference_(device.ordinal(), CudaEvent::Timing::kOn), set_(count) {
    for (std::size_t i = 0; i < count; ++i)
      events_.push_back(std::make_unique<CudaEvent>(device.ordinal(), CudaEvent::Timing::kOn));
  }

  void set(Stream& stream, std::size_t mark) override {
    const auto& cuda = static_cast<CudaStream&>(stream);
    // In a graph, only an external event keeps its time after a launch.
    const unsigned flags = cuda.is_captured() ? cudaEventRecordExternal : cudaEventRecordDefault;
    check(cudaEventRecordWithFlags(events_[mark]->get(), cuda.get(), flags), "recording an event");
    set_[mark] = true;
  }

  void read(std::span<double> seconds) override {
    const double now = record_reference();
    for (std::size_t mark = 0; mark < events_.size(); ++mark) {
      float milliseconds = 0;
      if (set_[mark])
        check(cudaEventElapsedTime(&milliseconds, events_[mark]->get(), reference_.get()), "measuring time on a GPU");
      seconds[mark] = set_[mark] ? now - 1e-3 * static_cast<double>(milliseconds) : 0;
    }
  }

 private:
  /// Returns the host's time at which the reference event passed. It passes between two readings of the host's clock.
  /// Repeats this until they are close, because the host may be interrupted between them.
  double record_reference() {
    constexpr double kClose = 50e-6;
    constexpr int kAttempts = 5;
    double before = 0, after = 0;
    for (int attempt = 0; attempt < kAttempts && (attempt == 0 || after - before > kClose); ++attempt) {
      before = now_seconds();
      stream_->record(reference_);
      stream_->synchronize();
      after = now_seconds();
    }
    return (before + after) / 2;
  }

  std::unique_ptr<Stream> stream_;
  CudaEvent reference_;
  std::vector<std::unique_ptr<CudaEvent>> events_;
  std::vector<bool> set_;
};

}  // namespace

std::unique_ptr<TimeMarks> make_cuda_time_marks(Device& device, std::size_t count) {
  return std::make_unique<CudaTimeMarks>(cuda_device(device), count);
}

}  // namespace aliquot
