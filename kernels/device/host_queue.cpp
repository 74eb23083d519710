#include "kernels/device/host_queue.h"

#include <fmt/format.h>
#include <stdexcept>

#include "kernels/system/short_turns.h"
#include "kernels/system/start_thread.h"

namespace aliquot {
namespace {
constexpr int64_t kPatienceNanoseconds = 1'000'000'000;
thread_local const std::atomic<bool>* cancelled_here = nullptr;
}  // namespace

bool work_cancelled() noexcept { return cancelled_here != nullptr && cancelled_here->load(std::memory_order_relaxed); }

HostStream& host(Stream& stream) {
  auto* host_stream = dynamic_cast<HostStream*>(&stream);
  if (host_stream == nullptr) throw std::logic_error("host work was given to a stream of another device");
  return *host_stream;
}

HostQueue::HostQueue(Lane lane, ThreadPool& pool, HostTimeline& timeline, std::function<void()> tell_failure)
    : HostStream(lane, pool),
      ring_(std::make_unique<Task[]>(kCapacity)),
      timeline_(timeline),
      tell_failure_(std::move(tell_failure)),
      exceptions_at_start_(std::uncaught_exceptions()),
      worker_(start_thread(fmt::format("the {} lane", name(lane)), [this] { work(); })) {}

HostQueue::~HostQueue() {
  if (std::uncaught_exceptions() > exceptions_at_start_) cancelled_ = true;
  last_ = enqueued_count_ + 1;
  run([] {});
  worker_.join();
}

void HostQueue::run(Task work) {
  if (enqueued_count_ >= kCapacity) {
    while (!timeline_.completed.wait(enqueued_count_ - kCapacity + 1, kPatienceNanoseconds)) {
    }
  }
  ring_[enqueued_count_ % kCapacity] = std::move(work);
  submitted_.raise_to(++enqueued_count_);
}

void HostQueue::wait_for(Gate gate) {
  run([gate]() mutable { gate.block(); });
}

void HostQueue::record(Event& event) { static_cast<HostEvent&>(event).set(&timeline_, enqueued_count_); }

void HostQueue::wait(const Event& event) {
  const EventPassed passed(event);
  if (passed.timeline == &timeline_) return;  // its own past
  run([passed] { passed.block(); });
}

void HostQueue::synchronize() {
  while (!timeline_.completed.wait(enqueued_count_, kPatienceNanoseconds)) {
  }
  timeline_.throw_if_failed();
}

void HostQueue::work() {
  cancelled_here = &cancelled_;
  ask_for_short_turns();
  for (uint64_t next = 1; next <= last_; ++next) {
    while (!submitted_.wait(next, kPatienceNanoseconds)) {
    }
    Task task = std::move(ring_[(next - 1) % kCapacity]);
    try {
      if (!timeline_.failed && !cancelled_) task();
    } catch (...) {
      timeline_.fail(std::current_exception());
      if (tell_failure_ && !cancelled_) tell_failure_();
    }
    task = Task();
    timeline_.completed.raise_to(next);
  }
}

}  // namespace aliquot
