#pragma once
// Named ranges on the timeline of a profiler.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace aliquot {

/// Ranges that a profiler for NVTX, such as Nsight Systems, shows on the timeline of the calling thread. It also shows
/// them on the timeline of a GPU, around the work that the thread enqueued inside a range. Ranges of one thread may be
/// nested. Without a profiler, and in a build without CUDA, there are no ranges. Thread-safe.
class ProfilerRanges {
 public:
  /// Registers the names, so that push() copies no text.
  explicit ProfilerRanges(std::span<const std::string> names);

  /// Begins a range with this name.
  void push(std::size_t name) const noexcept;
  /// Ends the innermost range of the thread.
  void pop() const noexcept;

 private:
  std::vector<void*> registered_;  // the handles that NVTX returned for the names
};

}  // namespace aliquot
