#pragma once
// Times at which streams reach marks.

#include <cstddef>
#include <memory>
#include <span>

#include "kernels/device/device.h"

namespace aliquot {

/// Numbered marks in the streams of one device. A stream reaches a mark when all work that was enqueued before it has
/// finished. Setting a mark again replaces its time. The device must outlive the marks, and the marks must outlive the
/// work of the streams. Used from the rank's own thread.
class TimeMarks {
 public:
  TimeMarks() = default;
  TimeMarks(const TimeMarks&) = delete;
  TimeMarks& operator=(const TimeMarks&) = delete;
  virtual ~TimeMarks() = default;

  /// Enqueues the mark. On a GPU, this enqueues no host work.
  virtual void set(Stream& stream, std::size_t mark) = 0;
  /// Stores the time of each mark, in seconds of now_seconds(). The time of a mark that was never set is 0. All streams
  /// with marks must be idle. Blocks for some microseconds on a GPU.
  virtual void read(std::span<double> seconds) = 0;
};

/// Returns `count` marks, numbered from 0.
std::unique_ptr<TimeMarks> make_time_marks(Device& device, std::size_t count);
/// The same for a GPU. Throws UnavailableError in a build without CUDA.
std::unique_ptr<TimeMarks> make_cuda_time_marks(Device& device, std::size_t count);

}  // namespace aliquot
