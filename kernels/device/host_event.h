#pragma once
// Events of host streams: a ticket in a timeline, so that recording one allocates nothing.

#include <atomic>
#include <deque>
#include <exception>

#include "kernels/device/gate.h"
#include "kernels/device/stream.h"
#include "kernels/system/shared_counter.h"

namespace aliquot {

/// How far a host stream has come, and whether its work threw.
struct HostTimeline {
  SharedCounter completed;   // pieces of work finished or dropped, counted from the stream's start
  std::exception_ptr error;  // set before `failed`, never changed after
  std::atomic<bool> failed{false};

  void throw_if_failed() const {
    if (failed.load(std::memory_order_acquire)) std::rethrow_exception(error);
  }
  /// Keeps the first exception.
  void fail(std::exception_ptr exception) {
    if (failed.load(std::memory_order_relaxed)) return;
    error = std::move(exception);
    failed.store(true, std::memory_order_release);
  }
};

/// The timelines of a device's streams, kept until the device ends: events and queued waits look at another stream's,
/// which may be gone by then. Used from the rank's own thread.
class HostTimelines {
 public:
  /// A new one, for one stream; stays where it is.
  HostTimeline& add() { return timelines_.emplace_back(); }

 private:
  std::deque<HostTimeline> timelines_;
};

/// Passed when `timeline` has completed `ticket` pieces of work; no timeline is passed already.
class HostEvent final : public Event {
 public:
  void set(const HostTimeline* timeline, uint64_t ticket) {
    timeline_ = timeline;
    ticket_ = ticket;
  }
  const HostTimeline* timeline() const { return timeline_; }
  uint64_t ticket() const { return ticket_; }
  bool passed() const override { return timeline_ == nullptr || timeline_->completed.reached(ticket_); }

 private:
  const HostTimeline* timeline_ = nullptr;
  uint64_t ticket_ = 0;
};

/// A gate's condition: an event has passed. Throws what the work before it threw, and WorkCancelled where work_cancelled().
struct EventPassed {
  const HostTimeline* timeline;
  uint64_t ticket;

  explicit EventPassed(const Event& event)
      : timeline(static_cast<const HostEvent&>(event).timeline()),
        ticket(static_cast<const HostEvent&>(event).ticket()) {}

  bool open() const {
    if (timeline == nullptr) return true;
    if (!timeline->completed.reached(ticket)) return false;
    timeline->throw_if_failed();
    return true;
  }
  void block() const {
    constexpr int64_t kWaitTimeoutNanoseconds = 20'000'000;
    if (timeline == nullptr) return;
    while (!timeline->completed.wait(ticket, kWaitTimeoutNanoseconds)) {
      if (work_cancelled()) throw WorkCancelled{};
    }
    timeline->throw_if_failed();
  }
};

}  // namespace aliquot
