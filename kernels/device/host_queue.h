#pragma once
// The two kinds of host stream: HostQueue has a worker thread, InlineStream runs work on the calling thread.

#include <functional>
#include <memory>
#include <thread>

#include "kernels/device/host_event.h"
#include "kernels/device/host_stream.h"

namespace aliquot {

/// An in-order queue with a worker thread. Enqueuing neither locks nor allocates. It waits only while kCapacity tasks
/// are queued. The destructor waits for queued tasks. During stack unwinding it drops them instead, and a task that
/// waits for a gate or an event is cancelled. `timeline` must be new, and must outlive every stream that may wait for
/// this one. The worker calls `on_failure` inside the catch block when a task throws. Throws UnavailableError if no
/// thread can be started.
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
  void wait_until_completed(uint64_t ticket) const;

  std::unique_ptr<Task[]> ring_;
  uint64_t enqueued_count_ = 0;  // used only by the rank's thread
  SharedCounter submitted_;
  HostTimeline& timeline_;
  RankThreads::Worker watched_;
  std::atomic<uint64_t> last_ticket_{UINT64_MAX};  // the worker exits after the task with this number
  std::atomic<bool> cancelled_{false};
  std::function<void()> on_failure_;
  int exceptions_at_start_;
  std::thread worker_;
};

/// The stream of the compute lane. run() executes the work on the calling thread before it returns, so no other thread
/// needs to be woken.
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
