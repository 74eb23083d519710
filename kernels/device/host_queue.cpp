#include "kernels/device/host_queue.h"

#include <fmt/format.h>
#include <stdexcept>

#include "kernels/device/gate.h"
#include "kernels/system/short_time_slice.h"
#include "kernels/system/start_thread.h"

namespace aliquot {
namespace {
constexpr int64_t kWaitTimeoutNanoseconds = 1'000'000'000;
thread_local const std::atomic<bool>* current_worker_cancelled = nullptr;
}  // namespace

bool work_cancelled() noexcept {
  return current_worker_cancelled != nullptr && current_worker_cancelled->load(std::memory_order_relaxed);
}

HostStream& as_host_stream(Stream& stream) {
  auto* host_stream = dynamic_cast<HostStream*>(&stream);
  if (host_stream == nullptr) throw std::logic_error("expected a host stream, but the stream belongs to a GPU");
  return *host_stream;
}

HostQueue::HostQueue(Lane lane, ThreadPool& pool, HostTimeline& timeline, std::function<void()> on_failure)
    : HostStream(lane, pool),
      ring_(std::make_unique<Task[]>(kCapacity)),
      timeline_(timeline),
      watched_(submitted_, timeline.completed),
      on_failure_(std::move(on_failure)),
      exceptions_at_start_(std::uncaught_exceptions()),
      worker_(start_thread(fmt::format("the {} lane", name(lane)), [this] { work(); })) {}

HostQueue::~HostQueue() {
  if (std::uncaught_exceptions() > exceptions_at_start_) cancelled_ = true;
  last_ticket_ = enqueued_count_ + 1;
  run([] {});
  worker_.join();
}

void HostQueue::run(Task work) {
  if (enqueued_count_ >= kCapacity) wait_until_completed(enqueued_count_ - kCapacity + 1);
  ring_[enqueued_count_ % kCapacity] = std::move(work);
  submitted_.raise_to(++enqueued_count_);
}

void HostQueue::wait_for(Gate gate) {
  run([gate]() mutable { gate.block(); });
}

void HostQueue::record(Event& event) { static_cast<HostEvent&>(event).set(&timeline_, enqueued_count_); }

void HostQueue::wait(const Event& event) {
  const EventPassed passed(event);
  if (passed.timeline == &timeline_) return;  // this stream recorded the event, and runs in order
  run([passed] { passed.block(); });
}

void HostQueue::wait_until_completed(uint64_t ticket) const {
  constexpr int64_t kPollNanoseconds = 20'000'000;
  DeadlockWatch watch;  // the waits for other ranks report a deadlock
  while (!timeline_.completed.wait(ticket, kPollNanoseconds)) (void)watch.poll([] { return std::string(); });
}

void HostQueue::synchronize() {
  wait_until_completed(enqueued_count_);
  timeline_.throw_if_failed();
}

void HostQueue::work() {
  current_worker_cancelled = &cancelled_;
  watched_.enter();
  request_short_time_slice();
  for (uint64_t next = 1; next <= last_ticket_; ++next) {
    while (!submitted_.wait(next, kWaitTimeoutNanoseconds)) {
    }
    Task task = std::move(ring_[(next - 1) % kCapacity]);
    try {
      if (!timeline_.failed && !cancelled_) task();
    } catch (const WorkCancelled&) {  // of another stream; it is not the reason of a failure
      timeline_.fail(std::current_exception());
    } catch (...) {
      timeline_.fail(std::current_exception());
      if (on_failure_ && !cancelled_) on_failure_();
    }
    task = Task();
    timeline_.completed.raise_to(next);
  }
}

}  // namespace aliquot
