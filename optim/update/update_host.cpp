#include "optim/update/update_host.h"

#include <chrono>
#include <cmath>
#include <mutex>

#include "kernels/device/host_stream.h"
#include "optim/update/state_digests.h"

namespace aliquot {
namespace {

// Threads get multiples of this many elements (16 KiB of fp32), so that two threads do not write to the same page.
constexpr int64_t kGrainElements = 16 * kBlockElements;

/// The first difference that the threads of one update have found.
class FirstDifference {
 public:
  bool exists() const { return exists_.load(std::memory_order_relaxed); }
  const std::optional<StateDifference>& get() const { return first_; }
  void note(const StateDifference& difference) {
    const std::lock_guard lock(mutex_);
    const bool precedes = !first_ || difference.block < first_->block;
    if (precedes) first_ = difference;
    exists_ = true;
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> exists_ = false;
  std::optional<StateDifference> first_;
};

/// Adds the time of its scope to StateCheck::nanoseconds.
class ScopedTime {
 public:
  explicit ScopedTime(const StateCheck& check) : check_(check), began_(Clock::now()) {}
  ~ScopedTime() {
    if (check_.nanoseconds == nullptr) return;
    const auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - began_);
    check_.nanoseconds->fetch_add(spent.count(), std::memory_order_relaxed);
  }
  ScopedTime(const ScopedTime&) = delete;
  ScopedTime& operator=(const ScopedTime&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  const StateCheck& check_;
  Clock::time_point began_;
};

void compare_range(const UpdateArgs& args, FirstDifference& found, int64_t begin, int64_t end) {
  const ScopedTime timed(*args.check);
  if (const auto difference = find_difference(args, begin, end)) found.note(*difference);
}

/// Processes a few blocks at a time, so that the digests read them in the cache. After a difference, only compares.
void update_compared_range(const UpdateArgs& args, const UpdateStep& step, FirstDifference& found, int64_t begin,
                           int64_t end) {
  const bool updates = std::isfinite(step.gradient_factor);
  for (int64_t from = begin; from < end; from += kGrainElements) {
    const int64_t to = std::min(end, from + kGrainElements);
    compare_range(args, found, from, to);
    if (!updates || found.exists()) continue;
    update_range(best_isa(), args, step, from, to);
    const ScopedTime timed(*args.check);
    record_digests(args, from, to);
  }
}

void report(const UpdateArgs& args, const FirstDifference& found, int64_t reported_step) {
  if (found.exists()) args.check->on_difference(*found.get(), reported_step);
}

void update(Stream& stream, const UpdateArgs& args, const UpdateStep& step) {
  HostStream& host_stream = as_host_stream(stream);
  host_stream.run([&args, step, &pool = host_stream.pool()] {
    FirstDifference found;
    pool.for_ranges(args.count, kGrainElements, [&](int64_t begin, int64_t end) {
      if (args.check == nullptr) return update_range(best_isa(), args, step, begin, end);
      update_compared_range(args, step, found, begin, end);
    });
    report(args, found, step.reported_step);
  });
}

void compare(Stream& stream, const UpdateArgs& args, int64_t reported_step) {
  HostStream& host_stream = as_host_stream(stream);
  host_stream.run([&args, reported_step, &pool = host_stream.pool()] {
    FirstDifference found;
    pool.for_ranges(args.count, kGrainElements,
                    [&](int64_t begin, int64_t end) { compare_range(args, found, begin, end); });
    report(args, found, reported_step);
  });
}

void record(Stream& stream, const UpdateArgs& args) {
  HostStream& host_stream = as_host_stream(stream);
  host_stream.run([&args, &pool = host_stream.pool()] {
    pool.for_ranges(args.count, kGrainElements, [&](int64_t begin, int64_t end) { record_digests(args, begin, end); });
  });
}

}  // namespace

const UpdateKernels& host_update_kernels() {
  static constexpr UpdateKernels kKernels{update, compare, record};
  return kKernels;
}

}  // namespace aliquot
