#pragma once
// Events of host streams. An event passes when its stream has completed a given number of tasks, the ticket. An event
// stores only this number and a pointer to the stream's timeline, so recording it allocates nothing.

#include <atomic>
#include <deque>
#include <exception>
#include <string>

#include "kernels/device/gate.h"
#include "kernels/device/stream.h"
#include "kernels/system/deadlock_watch.h"
#include "kernels/system/shared_counter.h"

namespace aliquot {

/// The progress of a host stream, and the exception that its work threw, if any.
struct HostTimeline {
  SharedCounter completed;   // number of tasks that were finished or dropped
  std::exception_ptr error;  // set once, before `failed`
  std::atomic<bool> failed{false};

  void throw_if_failed() const {
    if (failed.load(std::memory_order_acquire)) std::rethrow_exception(error);
  }
  /// Stores the exception, unless one is stored already.
  void fail(std::exception_ptr exception) {
    if (failed.load(std::memory_order_relaxed)) return;
    error = std::move(exception);
    failed.store(true, std::memory_order_release);
  }
};

/// Owns the timelines of a device's streams. They outlive the streams, because events and queued waits of other streams
/// read them. Used only by the rank's thread.
class HostTimelines {
 public:
  /// Creates the timeline of one stream. Its address stays valid.
  HostTimeline& add() { return timelines_.emplace_back(); }

 private:
  std::deque<HostTimeline> timelines_;
};

/// Passes when `timeline` has completed `ticket` tasks. An event without a timeline has passed.
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

/// A gate condition that holds when the event has passed. open() and block() rethrow an exception that was
/// thrown on the event's stream. block() throws WorkCancelled if work_cancelled() returns true.
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
    DeadlockWatch watch;  // the waits for other ranks report a deadlock
    while (!timeline->completed.wait(ticket, kWaitTimeoutNanoseconds)) {
      if (work_cancelled()) throw WorkCancelled{};
      (void)watch.poll([] { return std::string(); });
    }
    timeline->throw_if_failed();
  }
};

}  // namespace aliquot
