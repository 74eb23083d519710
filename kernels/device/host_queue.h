#pragma once
// The two kinds of host stream: a worker of its own, and the caller itself.

#include <functional>
#include <memory>
#include <thread>

#include "kernels/device/host_event.h"
#include "kernels/device/host_stream.h"

namespace aliquot {

/// An in-order queue with a worker thread. Enqueuing neither locks nor allocates; it waits only when kCapacity pieces of
/// work are queued. Destruction finishes what is queued, except when an exception is unwinding the owner: then queued work
/// is dropped and a gate or an event that it waits for is given up. `timeline` is new, and outlives every stream that may
/// wait for this one; `on_failure` is called by the worker
/// while it handles what work threw. Throws UnavailableError when there is no thread to be had.
class HostQueue final : public HostStream {
 public:
  static constexpr uint64_t kCapacity = 1024;

  HostQueue(Lane lane, ThreadPool& pool, HostTimeline& timeline, std::function<void()> on_failure = {});
  ~HostQueue() override;

  void run(Task work) override;
  void wait_for(Gate gate) override;
  void record(Event& event) override;
  void wait(const Event& event) override;
  void synchronize() override;

 private:
  void work();

  std::unique_ptr<Task[]> ring_;
  uint64_t enqueued_count_ = 0;  // the owner's count; `submitted_` is what the worker may take
  SharedCounter submitted_;
  HostTimeline& timeline_;
  std::atomic<uint64_t> last_ticket_{UINT64_MAX};  // the worker ends after this piece of work
  std::atomic<bool> cancelled_{false};
  std::function<void()> on_failure_;
  int exceptions_at_start_;
  std::thread worker_;
};

/// The compute lane: work is done by the caller before the call returns, so a unit costs no wake-up.
class InlineStream final : public HostStream {
 public:
  using HostStream::HostStream;

  void run(Task work) override { work(); }
  void wait_for(Gate gate) override { gate.block(); }
  void record(Event& event) override { static_cast<HostEvent&>(event).set(nullptr, 0); }
  void wait(const Event& event) override { EventPassed(event).block(); }
  void synchronize() override {}
};

}  // namespace aliquot
