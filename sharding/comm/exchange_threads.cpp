#include "sharding/comm/exchange_threads.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <fmt/format.h>
#include <mutex>
#include <numeric>
#include <utility>

#include "sharding/comm/communicator.h"
#include "sharding/comm/exchange_purpose.h"
#include "sharding/comm/share_between_threads.h"
#include "sharding/groups.h"

namespace aliquot {
namespace {

using Clock = std::chrono::steady_clock;

/// What one rank brings to a round.
struct Deposit {
  std::string bytes;
  std::shared_ptr<void> object;
  std::string purpose = {};
};

}  // namespace

/// Rounds: each rank deposits what it says; the last one publishes the round and wakes the others.
class ThreadsHub {
 public:
  /// `names`: what the ranks are called. `parent`: null, or the hub that this one's ranks were split from.
  ThreadsHub(std::vector<int> names, double timeout_seconds, std::shared_ptr<ThreadsHub> parent)
      : names_(std::move(names)),
        timeout_seconds_(timeout_seconds),
        parent_(std::move(parent)),
        deposits_(names_.size()),
        deposited_(names_.size(), false),
        returned_(names_.size(), false) {}

  int rank_count() const { return static_cast<int>(names_.size()); }
  int name_of(int rank) const { return names_[rank]; }
  double timeout_seconds() const { return timeout_seconds_; }

  std::vector<Deposit> all(int rank, Deposit own) {
    std::unique_lock lock(mutex_);
    throw_if_aborted();
    const uint64_t round = round_;
    own.purpose = exchange_purpose().what;
    deposits_[rank] = std::move(own);
    deposited_[rank] = true;
    refuse_other_purposes(rank);
    if (++deposit_count_ == rank_count()) {
      publish();
    } else {
      wait(lock, rank, round);
    }
    return read();
  }

  void abort(std::string_view why) noexcept {
    const std::lock_guard lock(mutex_);
    leave(why);
  }

  bool aborted(std::string* why) const {
    const std::lock_guard lock(mutex_);
    return find_abort(why);
  }

  bool returned(int rank) const {
    const std::lock_guard lock(mutex_);
    return has_returned(rank);
  }

  /// Of `rank`, while it waits for `missing` among others.
  std::string purpose_of_wait(int rank, int missing) const {
    const std::lock_guard lock(mutex_);
    return deposited_[rank] && !deposited_[missing] ? deposits_[rank].purpose : std::string();
  }

  void note_return(int rank) noexcept {
    const std::lock_guard lock(mutex_);
    returned_[rank] = true;
    changed_.notify_all();
  }

 private:
  void publish() {
    published_ = std::exchange(deposits_, std::vector<Deposit>(names_.size()));
    deposited_.assign(deposited_.size(), false);
    deposit_count_ = read_count_ = 0;
    ++round_;
    changed_.notify_all();
  }

  // The last to read lets go of the objects, which their ranks may want to see freed.
  std::vector<Deposit> read() { return ++read_count_ == rank_count() ? std::exchange(published_, {}) : published_; }

  void wait(std::unique_lock<std::mutex>& lock, int rank, uint64_t round) {
    constexpr std::chrono::milliseconds kLookAtParent{20};
    const auto deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_seconds_));
    while (round_ == round) {
      throw_if_aborted();
      if (Clock::now() >= deadline) give_up(rank);
      for (int r = 0; r < rank_count(); ++r) {
        if (!deposited_[r] && has_returned(r)) give_up_on(rank, r);
      }
      changed_.wait_until(lock, parent_ == nullptr ? deadline : std::min(deadline, Clock::now() + kLookAtParent));
    }
  }

  bool find_abort(std::string* why) const {
    if (!aborted_) return parent_ != nullptr && parent_->aborted(why);
    if (why != nullptr) *why = why_;
    return true;
  }

  void throw_if_aborted() const {
    std::string why;
    if (find_abort(&why)) throw CommunicationError(why);
  }

  /// Of the world's ranks: the outermost hub knows.
  bool has_returned(int rank) const {
    if (parent_ == nullptr) return returned_[rank];
    const int rank_of_parent = parent_->rank_of(name_of(rank));
    const std::lock_guard lock(parent_->mutex_);
    return parent_->has_returned(rank_of_parent);
  }
  int rank_of(int name) const {
    return static_cast<int>(std::find(names_.begin(), names_.end(), name) - names_.begin());
  }

  /// Ranks that came for different things would take each other's words for an answer.
  void refuse_other_purposes(int rank) {
    for (int r = 0; r < rank_count(); ++r) {
      if (!deposited_[r] || deposits_[r].purpose == deposits_[rank].purpose) continue;
      leave(fmt::format(
          "rank {} is here to {}, and rank {} to {}: all ranks are to make the same calls in the same order",
          name_of(r), deposits_[r].purpose, name_of(rank), deposits_[rank].purpose));
      throw CommunicationError(why_);
    }
  }

  void leave(std::string_view why) {
    if (!aborted_) why_ = why;
    aborted_ = true;
    changed_.notify_all();
  }

  [[noreturn]] void give_up(int rank) {
    std::vector<int> missing;
    for (int r = 0; r < rank_count(); ++r) {
      if (!deposited_[r]) missing.push_back(name_of(r));
    }
    leave(exchange_deadline_text(name_of(rank), timeout_seconds_, missing));
    throw CommunicationError(why_);
  }

  [[noreturn]] void give_up_on(int rank, int missing) {
    leave(fmt::format("rank {} waits {}, but rank {} has returned from its function", name_of(rank),
                      exchange_wait_text(exchange_purpose().what), name_of(missing)));
    throw CommunicationError(why_);
  }

  const std::vector<int> names_;
  const double timeout_seconds_;
  const std::shared_ptr<ThreadsHub> parent_;
  mutable std::mutex mutex_;  // before the parent's
  std::condition_variable changed_;
  uint64_t round_ = 0;
  int deposit_count_ = 0, read_count_ = 0;
  // Nobody can publish a round before all have read the one before: they must deposit first.
  std::vector<Deposit> deposits_, published_;
  std::vector<bool> deposited_;
  std::vector<bool> returned_;
  bool aborted_ = false;
  std::string why_;
};

namespace {

class ThreadsExchange final : public Exchange {
 public:
  ThreadsExchange(std::shared_ptr<ThreadsHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  int rank() const override { return rank_; }
  int rank_count() const override { return hub_->rank_count(); }
  int name_of(int rank) const override { return hub_->name_of(rank); }

  std::vector<std::string> all(std::string_view own) override {
    std::vector<std::string> all;
    for (Deposit& deposit : hub_->all(rank_, {std::string(own), nullptr})) all.push_back(std::move(deposit.bytes));
    return all;
  }

  std::vector<std::shared_ptr<void>> all_objects(std::shared_ptr<void> own) override {
    std::vector<std::shared_ptr<void>> all;
    for (Deposit& deposit : hub_->all(rank_, {{}, std::move(own)})) all.push_back(std::move(deposit.object));
    return all;
  }

  std::unique_ptr<Exchange> split(int color, int key) override {
    const Group group = agree_on_group(*this, color, key);
    // The group's first rank makes the hub.
    std::shared_ptr<ThreadsHub> hub;
    if (group.rank == 0) hub = std::make_shared<ThreadsHub>(group.names(*this), hub_->timeout_seconds(), hub_);
    hub = gather_from_threads(*this, std::move(hub))[group.members.front()];
    return make_threads_exchange(std::move(hub), group.rank);
  }

  void abort(std::string_view why) noexcept override { hub_->abort(why); }
  bool aborted(std::string* why) const override { return hub_->aborted(why); }
  bool has_returned(int rank) const override { return hub_->returned(rank); }
  std::string awaited_by(int rank) const override { return hub_->purpose_of_wait(rank, rank_); }

 private:
  std::shared_ptr<ThreadsHub> hub_;
  int rank_;
};

}  // namespace

std::shared_ptr<ThreadsHub> make_threads_hub(int rank_count, double timeout_seconds) {
  std::vector<int> names(static_cast<std::size_t>(rank_count));
  std::iota(names.begin(), names.end(), 0);
  return std::make_shared<ThreadsHub>(std::move(names), timeout_seconds, nullptr);
}

std::unique_ptr<Exchange> make_threads_exchange(std::shared_ptr<ThreadsHub> hub, int rank) {
  return std::make_unique<ThreadsExchange>(std::move(hub), rank);
}

void abort(ThreadsHub& hub, std::string_view why) noexcept { hub.abort(why); }

void note_return(ThreadsHub& hub, int rank) noexcept { hub.note_return(rank); }

}  // namespace aliquot
