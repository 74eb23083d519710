#include "tests/support/simulated/simulated_cuda_grid.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/simulated/simulated_fiber.h"

namespace aliquot::simulated {
namespace {

/// A copy that a kernel thread has started.
struct Copy {
  void* to;
  const void* from;
  std::size_t bytes, source_bytes;
};

/// A fiber that runs kernel threads one after another. While one of them waits, another runner starts the next threads.
/// Runners serve all grids of one host thread, because the creation of a fiber takes longer than most blocks.
struct Runner {
  std::unique_ptr<Fiber> fiber;
  unsigned thread = 0;
  bool second = false;  // whether the last exchange used the second of the two sets of slots
  std::vector<Copy> copies;
};

struct Warp {
  // Exchanges alternate between two sets. A lane can write to a set again only after all lanes have read that set.
  alignas(16) std::byte slots[2][kWarpLanes][kLaneBytes];
  std::vector<Runner*> waiting;
  unsigned live_lanes = 0;
};

/// Runs the blocks of one grid one after another, on the host thread that created this object.
class Grid {
 public:
  Grid(const GridShape& shape, const std::function<void()>& thread)
      : shape_(shape),
        thread_(thread),
        warps_((shape.threads + kWarpLanes - 1) / kWarpLanes),
        shared_(std::make_unique_for_overwrite<std::byte[]>(shape.shared_bytes)) {
    gridDim = dim3(shape.blocks);
    blockDim = dim3(shape.threads);
  }

  void run_block(unsigned block) {
    blockIdx = dim3(block);
    // Shared memory is initially NaN.
    std::fill_n(shared_.get(), shape_.shared_bytes, std::byte{0xff});
    order_threads();
    for (unsigned t = 0; t < shape_.threads; ++t) ++warps_[t / kWarpLanes].live_lanes;
    live_threads_ = shape_.threads;
    while (live_threads_ > 0) {
      if (!ready_.empty()) {
        Runner* runner = ready_.front();
        ready_.pop_front();
        enter(*runner);
      } else if (next_ < order_.size()) {
        enter(idle_runner());
      } else if (!release_warps() && !release_block()) {
        abort_on_deadlock();
      }
    }
  }

  /// The body of a runner: runs kernel threads until all threads of the block have started.
  void run_threads(Runner& self) {
    while (next_ < order_.size()) {
      self.thread = order_[next_++];
      self.second = false;
      threadIdx = dim3(self.thread);
      thread_();
      if (!self.copies.empty()) abort_on_copy("the thread returned before it waited for its copies");
      --live_threads_;
      --own_warp().live_lanes;
    }
  }

  void* shared() { return shared_.get(); }
  Warp& own_warp() { return warps_[threadIdx.x / kWarpLanes]; }
  std::byte (*next_slots())[kLaneBytes] {
    current_runner_->second = !current_runner_->second;
    return own_warp().slots[current_runner_->second ? 1 : 0];
  }
  void wait_in_warp() {
    own_warp().waiting.push_back(current_runner_);
    current_runner_->fiber->leave();
  }
  void start_copy(const Copy& copy) {
    const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(copy.to) - shared_.get());
    const bool inside = offset < shape_.shared_bytes && copy.bytes <= shape_.shared_bytes - offset;
    if (!inside) abort_on_copy("the destination is not in shared memory");
    const auto source = reinterpret_cast<uintptr_t>(copy.from);
    if (offset % copy.bytes != 0 || (copy.source_bytes > 0 && source % copy.bytes != 0))
      abort_on_copy("an address is not aligned");
    std::memset(copy.to, 0xff, copy.bytes);
    current_runner_->copies.push_back(copy);
  }
  void wait_for_copies() {
    for (const Copy& copy : current_runner_->copies) {
      std::memset(copy.to, 0, copy.bytes);
      std::memcpy(copy.to, copy.from, copy.source_bytes);
    }
    current_runner_->copies.clear();
  }
  void wait_in_block() {
    at_barrier_.push_back(current_runner_);
    current_runner_->fiber->leave();
  }

 private:
  void order_threads() {
    static thread_local std::minstd_rand random(7);
    order_.resize(shape_.threads);
    std::iota(order_.begin(), order_.end(), 0u);
    switch (random() % 3) {
      case 0: break;
      case 1: std::reverse(order_.begin(), order_.end()); break;
      default: std::shuffle(order_.begin(), order_.end(), random);
    }
    next_ = 0;
  }

  static Runner& idle_runner();

  void enter(Runner& runner) {
    current_runner_ = &runner;
    threadIdx = dim3(runner.thread);
    runner.fiber->enter();
  }

  /// Releases warps in which all lanes wait. Ignores lanes that have returned.
  bool release_warps() {
    for (Warp& warp : warps_) {
      if (warp.waiting.empty() || warp.waiting.size() != warp.live_lanes) continue;
      ready_.insert(ready_.end(), warp.waiting.begin(), warp.waiting.end());
      warp.waiting.clear();
    }
    return !ready_.empty();
  }

  bool release_block() {
    if (at_barrier_.size() != live_threads_) return false;
    ready_.assign(at_barrier_.begin(), at_barrier_.end());
    at_barrier_.clear();
    return true;
  }

  [[noreturn]] void abort_on_deadlock() {
    std::fprintf(
        stderr,
        "deadlock in kernel %s, block %u of %u: %u of %u threads are live, %zu wait at the block's barrier, and the "
        "others wait in warps with diverged lanes\n",
        shape_.kernel, blockIdx.x, shape_.blocks, live_threads_, shape_.threads, at_barrier_.size());
    std::abort();
  }

  [[noreturn]] void abort_on_copy(const char* what) {
    std::fprintf(stderr, "invalid asynchronous copy in kernel %s, block %u, thread %u: %s\n", shape_.kernel, blockIdx.x,
                 threadIdx.x, what);
    std::abort();
  }

  GridShape shape_;
  const std::function<void()>& thread_;
  std::vector<Warp> warps_;
  std::unique_ptr<std::byte[]> shared_;
  std::vector<unsigned> order_;
  std::size_t next_ = 0;
  unsigned live_threads_ = 0;
  std::vector<Runner*> at_barrier_;
  std::deque<Runner*> ready_;
  Runner* current_runner_ = nullptr;
};

thread_local Grid* grid_at_work = nullptr;

struct Runners {
  std::vector<std::unique_ptr<Runner>> all;
  std::vector<Runner*> idle;
};
thread_local Runners runners;

Runner& Grid::idle_runner() {
  if (!runners.idle.empty()) {
    Runner* runner = runners.idle.back();
    runners.idle.pop_back();
    return *runner;
  }
  Runner* runner = runners.all.emplace_back(std::make_unique<Runner>()).get();
  runner->fiber = std::make_unique<Fiber>([runner] {
    while (true) {
      grid_at_work->run_threads(*runner);
      runners.idle.push_back(runner);
      runner->fiber->leave();
    }
  });
  return *runner;
}

}  // namespace

void run_grid(const GridShape& shape, const std::function<void()>& thread) {
  Grid grid(shape, thread);
  grid_at_work = &grid;
  for (unsigned block = 0; block < shape.blocks; ++block) grid.run_block(block);
  grid_at_work = nullptr;
}

void* shared_memory() { return grid_at_work->shared(); }
void wait_for_block() { grid_at_work->wait_in_block(); }
void wait_for_warp() { grid_at_work->wait_in_warp(); }

void start_copy(void* to, const void* from, std::size_t bytes, std::size_t source_bytes) {
  grid_at_work->start_copy({to, from, bytes, source_bytes});
}
void wait_for_copies() { grid_at_work->wait_for_copies(); }

const std::byte* exchange_in_warp(const void* value, std::size_t bytes) {
  std::byte(*slots)[kLaneBytes] = grid_at_work->next_slots();
  std::memcpy(slots[own_lane()], value, bytes);
  wait_for_warp();
  return slots[0];
}

}  // namespace aliquot::simulated
