#include "tests/support/adversarial_device.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include "kernels/device/device_host.h"
#include "kernels/device/host_event.h"
#include "kernels/device/host_stream.h"

namespace aliquot {
namespace {

/// When the adversary runs queued work: as late as possible, as early as possible, or at random.
enum class RunPreference : uint8_t { kLate, kEarly, kRandom };
constexpr int kPreferenceCount = 3;

struct Piece {
  std::optional<Gate> gate;  // if set, this item is a wait for the gate; otherwise it is `work`
  Task work;
};

/// The queued work of one stream. State::mutex protects all members except the timeline. The device owns the timeline,
/// which may be read without the mutex.
struct Queue {
  Queue(HostTimeline& owned_by_device, const std::function<void()>& callback)
      : timeline(owned_by_device), on_failed_work(callback) {}
  std::deque<Piece> pieces;
  uint64_t enqueued_count = 0;
  HostTimeline& timeline;
  const std::function<void()>& on_failed_work;  // of the device
};

}  // namespace

struct AdversarialScheduler::State {
  State(uint64_t seed, Compute compute_lane)
      : random(seed), preference(static_cast<RunPreference>(seed % kPreferenceCount)), compute(compute_lane) {}

  /// Runs the first item of `queue` if its gate is open. If the queue has failed, drops the item instead. Returns
  /// whether the item was removed.
  bool run_next(Queue& queue) {
    if (queue.pieces.empty()) return false;
    Piece& piece = queue.pieces.front();
    try {
      if (!queue.timeline.failed) {
        if (piece.gate && !piece.gate->open()) return false;
        if (!piece.gate) piece.work();
      }
    } catch (const WorkCancelled&) {  // of another stream; it is not the reason of a failure
      queue.timeline.fail(std::current_exception());
    } catch (...) {
      queue.timeline.fail(std::current_exception());
      if (queue.on_failed_work) queue.on_failed_work();
    }
    queue.pieces.pop_front();
    queue.timeline.completed.raise_to(queue.timeline.completed.value() + 1);
    changed.notify_all();
    return true;
  }

  /// Runs one item of any queue except `excluded`. Starts the search at a random queue. Returns false if no item can
  /// run.
  bool run_from_any_queue(const Queue* excluded) {
    if (queues.empty()) return false;
    const std::size_t start = random() % queues.size();
    for (std::size_t i = 0; i < queues.size(); ++i) {
      Queue* queue = queues[(start + i) % queues.size()];
      if (queue != excluded && run_next(*queue)) return true;
    }
    return false;
  }

  /// Runs work after an enqueue, depending on the preference: no work, as much as possible, or a few random items.
  void run_after_enqueue(Queue& queue) {
    if (preference == RunPreference::kEarly) {
      while (run_next(queue) || (random() % 2 == 0 && run_from_any_queue(nullptr))) {
      }
    } else if (preference == RunPreference::kRandom) {
      for (uint64_t n = random() % 4; n > 0; --n) run_from_any_queue(nullptr);
    }
  }

  /// Runs work until done() is true. Prefers the work of `wanted`: always if the preference is kLate, and otherwise at
  /// random. If no work can run, waits until other ranks enqueue work.
  template <typename Done>
  void run_until(const Queue* wanted, Done done) {
    std::unique_lock lock(mutex);
    while (!done()) {
      const bool prefer_wanted = preference == RunPreference::kLate || random() % 2 == 0;
      if (wanted != nullptr && prefer_wanted && run_next(*const_cast<Queue*>(wanted))) continue;
      if (run_from_any_queue(prefer_wanted ? wanted : nullptr)) continue;
      changed.wait_for(lock, std::chrono::milliseconds(1));  // polls, because a gate may open without a notification
    }
  }

  /// Returns the queue that has this timeline, or null.
  const Queue* owner(const HostTimeline* timeline) {
    const std::lock_guard lock(mutex);
    for (const Queue* queue : queues) {
      if (&queue->timeline == timeline) return queue;
    }
    return nullptr;
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::mt19937_64 random;
  RunPreference preference;
  Compute compute;
  std::vector<Queue*> queues;
};

namespace {

class AdversarialStream final : public HostStream {
 public:
  AdversarialStream(Lane lane, ThreadPool& pool, HostTimeline& timeline, const std::function<void()>& on_failed_work,
                    std::shared_ptr<AdversarialScheduler::State> state)
      : HostStream(lane, pool), state_(std::move(state)), queue_(timeline, on_failed_work) {
    const std::lock_guard lock(state_->mutex);
    state_->queues.push_back(&queue_);
  }

  ~AdversarialStream() override {
    if (std::uncaught_exceptions() > exceptions_at_start_) {
      const std::lock_guard lock(state_->mutex);
      queue_.timeline.fail(std::make_exception_ptr(WorkCancelled{}));  // drops queued work
    }
    state_->run_until(&queue_, [this] { return queue_.pieces.empty(); });
    const std::lock_guard lock(state_->mutex);
    std::erase(state_->queues, &queue_);
  }

  void run(Task work) override { enqueue({std::nullopt, std::move(work)}); }
  void wait_for(Gate gate) override { enqueue({gate, Task()}); }
  void record(Event& event) override { static_cast<HostEvent&>(event).set(&queue_.timeline, queue_.enqueued_count); }
  void wait(const Event& event) override { wait_for(Gate(EventPassed(event))); }

  void synchronize() override {
    state_->run_until(&queue_, [this] { return queue_.timeline.completed.reached(queue_.enqueued_count); });
    queue_.timeline.throw_if_failed();
  }

 private:
  void enqueue(Piece piece) {
    const std::lock_guard lock(state_->mutex);
    queue_.pieces.push_back(std::move(piece));
    ++queue_.enqueued_count;
    state_->changed.notify_all();
    state_->run_after_enqueue(queue_);
  }

  std::shared_ptr<AdversarialScheduler::State> state_;
  Queue queue_;
  int exceptions_at_start_ = std::uncaught_exceptions();
};

/// The compute stream with kInline. Work of this stream runs immediately, on the rank's thread. A wait runs queued work
/// of other streams until its condition is true.
class AdversarialCompute final : public HostStream {
 public:
  AdversarialCompute(ThreadPool& pool, std::shared_ptr<AdversarialScheduler::State> state)
      : HostStream(Lane::kCompute, pool), state_(std::move(state)) {}

  void run(Task work) override {
    // Runs one task at a time, so that a missing wait gives a wrong result instead of a data race.
    const std::lock_guard lock(state_->mutex);
    work();
  }
  void wait_for(Gate gate) override {
    state_->run_until(nullptr, [&gate] { return gate.open(); });
  }
  void record(Event& event) override { static_cast<HostEvent&>(event).set(nullptr, 0); }

  void wait(const Event& event) override {
    const EventPassed passed(event);
    if (passed.timeline == nullptr) return;
    state_->run_until(state_->owner(passed.timeline), [&passed] { return passed.open(); });
  }
  void synchronize() override {}

 private:
  std::shared_ptr<AdversarialScheduler::State> state_;
};

class AdversarialDevice final : public HostDeviceBase {
 public:
  AdversarialDevice(std::shared_ptr<AdversarialScheduler::State> state, const Kernels* kernels)
      : HostDeviceBase(1), state_(std::move(state)), kernels_(kernels) {}

  std::string describe() const override { return "host, adversarial"; }
  const Kernels& kernels() const override { return kernels_ != nullptr ? *kernels_ : HostDeviceBase::kernels(); }

  /// New memory has random bytes, so a result that depends on uninitialized memory differs between runs and ranks.
  Buffer allocate(int64_t size_bytes, Category category, std::string_view owner) override {
    Buffer buffer = HostDeviceBase::allocate(size_bytes, category, owner);
    const std::lock_guard lock(state_->mutex);
    std::generate_n(buffer.data(), buffer.size_bytes(), [this] { return static_cast<std::byte>(state_->random()); });
    return buffer;
  }

  std::unique_ptr<Stream> make_stream(Lane lane) override {
    if (lane == Lane::kCompute && state_->compute == AdversarialScheduler::Compute::kInline)
      return std::make_unique<AdversarialCompute>(pool(), state_);
    return std::make_unique<AdversarialStream>(lane, pool(), add_timeline(), failed_work_callback(), state_);
  }

 private:
  std::shared_ptr<AdversarialScheduler::State> state_;
  const Kernels* kernels_;
};

}  // namespace

AdversarialScheduler::AdversarialScheduler(uint64_t seed, Compute compute)
    : state_(std::make_shared<State>(seed, compute)) {}
AdversarialScheduler::~AdversarialScheduler() = default;

std::unique_ptr<Device> AdversarialScheduler::make_device(const Kernels* kernels) {
  return std::make_unique<AdversarialDevice>(state_, kernels);
}

}  // namespace aliquot
