#include "sharding/exchange_threads.h"

#include <chrono>
#include <condition_variable>
#include <fmt/format.h>
#include <mutex>

#include "sharding/communicator.h"
#include "sharding/groups.h"

namespace aliquot {

/// Rounds: each rank deposits its string; the last one publishes the round and wakes the others.
class ThreadsHub {
 public:
  ThreadsHub(int rank_count, double timeout_seconds)
      : timeout_seconds_(timeout_seconds), deposits_(rank_count), deposited_(rank_count, false) {}

  int rank_count() const { return static_cast<int>(deposits_.size()); }
  double timeout_seconds() const { return timeout_seconds_; }

  std::vector<std::string> all(int rank, std::string_view own) {
    std::unique_lock lock(mutex_);
    throw_if_aborted();
    const uint64_t round = round_;
    deposits_[rank] = own;
    deposited_[rank] = true;
    if (++deposit_count_ == rank_count()) {
      published_ = deposits_;
      deposited_.assign(deposited_.size(), false);
      deposit_count_ = 0;
      ++round_;
      changed_.notify_all();
      return published_;
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_seconds_);
    while (round_ == round && !aborted_) {
      if (changed_.wait_until(lock, deadline) == std::cv_status::timeout && round_ == round) give_up(rank);
    }
    if (round_ == round) throw_if_aborted();
    return published_;
  }

  void abort(std::string_view why) noexcept {
    const std::lock_guard lock(mutex_);
    if (!aborted_) why_ = why;
    aborted_ = true;
    changed_.notify_all();
  }

  bool aborted(std::string* why) const {
    const std::lock_guard lock(mutex_);
    if (aborted_ && why != nullptr) *why = why_;
    return aborted_;
  }

 private:
  void throw_if_aborted() const {
    if (aborted_) throw CommunicationError(why_);
  }

  [[noreturn]] void give_up(int rank) {
    std::string missing;
    for (int r = 0; r < rank_count(); ++r) {
      if (!deposited_[r]) missing += fmt::format("; rank {} never arrived", r);
    }
    why_ =
        fmt::format("rank {} waited {:g} s for the other ranks to set up together{}", rank, timeout_seconds_, missing);
    aborted_ = true;
    changed_.notify_all();
    throw CommunicationError(why_);
  }

  double timeout_seconds_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t round_ = 0;
  int deposit_count_ = 0;
  // Nobody can publish a round before all have read the one before: they must deposit first.
  std::vector<std::string> deposits_, published_;
  std::vector<bool> deposited_;
  bool aborted_ = false;
  std::string why_;
};

namespace {

class ThreadsExchange final : public Exchange {
 public:
  ThreadsExchange(std::shared_ptr<ThreadsHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  int rank() const override { return rank_; }
  int rank_count() const override { return hub_->rank_count(); }
  std::vector<std::string> all(std::string_view own) override { return hub_->all(rank_, own); }

  std::unique_ptr<Exchange> split(int color, int key) override {
    const Group group = agree_on_group(*this, color, key);
    // The group's first rank makes the hub; the others copy its pointer before that rank may forget its own.
    std::shared_ptr<ThreadsHub> hub;
    if (group.rank == 0) hub = make_threads_hub(static_cast<int>(group.members.size()), hub_->timeout_seconds());
    const auto addresses = all(std::to_string(reinterpret_cast<uintptr_t>(&hub)));
    if (group.rank != 0)
      hub = *reinterpret_cast<std::shared_ptr<ThreadsHub>*>(std::stoull(addresses[group.members[0]]));
    all("copied");
    return make_threads_exchange(std::move(hub), group.rank);
  }

  void abort(std::string_view why) noexcept override { hub_->abort(why); }
  bool aborted(std::string* why) const override { return hub_->aborted(why); }

 private:
  std::shared_ptr<ThreadsHub> hub_;
  int rank_;
};

}  // namespace

std::shared_ptr<ThreadsHub> make_threads_hub(int rank_count, double timeout_seconds) {
  return std::make_shared<ThreadsHub>(rank_count, timeout_seconds);
}

std::unique_ptr<Exchange> make_threads_exchange(std::shared_ptr<ThreadsHub> hub, int rank) {
  return std::make_unique<ThreadsExchange>(std::move(hub), rank);
}

void abort(ThreadsHub& hub, std::string_view why) noexcept { hub.abort(why); }

}  // namespace aliquot
