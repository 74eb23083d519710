#include "sharding/comm/bootstrap_threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fmt/format.h>
#include <mutex>
#include <numeric>
#include <utility>

#include "kernels/system/deadlock_watch.h"
#include "sharding/comm/abort_reason.h"
#include "sharding/comm/collective_purpose.h"
#include "sharding/comm/communicator.h"
#include "sharding/comm/gather_from_threads.h"
#include "sharding/comm/poll_period.h"
#include "sharding/groups.h"

namespace aliquot {
namespace {

using Clock = std::chrono::steady_clock;

/// The data that one rank contributes to a round.
struct Contribution {
  std::string bytes;
  std::shared_ptr<void> object;
  std::string purpose = {};
};
/// What all ranks contributed to a round. All of them read one copy.
using Contributions = std::shared_ptr<const std::vector<Contribution>>;

}  // namespace

/// Performs all-gathers in rounds. Each rank stores its contribution. The last rank publishes all contributions and
/// wakes the other ranks.
class ThreadsBootstrapStore {
 public:
  /// `parent` is the store from which these ranks were split, or null.
  ThreadsBootstrapStore(std::vector<int> global_ranks, double timeout_seconds,
                        std::shared_ptr<ThreadsBootstrapStore> parent)
      : global_ranks_(std::move(global_ranks)),
        timeout_seconds_(timeout_seconds),
        parent_(std::move(parent)),
        contributions_(global_ranks_.size()),
        has_contributed_(global_ranks_.size(), false),
        returned_(global_ranks_.size(), false) {}

  int rank_count() const { return static_cast<int>(global_ranks_.size()); }
  int global_rank(int rank) const { return global_ranks_[rank]; }
  double timeout_seconds() const { return timeout_seconds_; }

  Contributions all_gather(int rank, Contribution own) {
    std::unique_lock lock(mutex_);
    throw_if_aborted();
    const uint64_t round = round_;
    own.purpose = collective_purpose().what;
    contributions_[rank] = std::move(own);
    has_contributed_[rank] = true;
    if (contribution_count_ == 0) first_contributor_ = rank;
    check_same_purpose(first_contributor_, rank);
    if (++contribution_count_ == rank_count()) {
      publish();
    } else {
      wait(lock, rank, round);
    }
    return read();
  }

  void abort(std::string_view why) noexcept {
    const std::lock_guard lock(mutex_);
    record_abort(why);
  }

  bool aborted(std::string* why) const {
    const std::lock_guard lock(mutex_);
    return find_abort(why);
  }

  bool returned(int rank) const {
    if (!any_returned()) return false;
    const std::lock_guard lock(mutex_);
    return has_returned(rank);
  }

  /// Returns the purpose for which `rank` waits for `missing`, or "" if `rank` does not wait for `missing`.
  std::string purpose_of_wait(int rank, int missing) const {
    if (contribution_count_ == 0) return {};  // callers ask about each rank in turn, so avoid the lock
    const std::lock_guard lock(mutex_);
    return has_contributed_[rank] && !has_contributed_[missing] ? contributions_[rank].purpose : std::string();
  }

  void mark_returned(int rank) noexcept {
    const std::lock_guard lock(mutex_);
    returned_[rank] = true;
    any_returned_ = true;
    changed_.notify_all();
  }

 private:
  void publish() {
    published_ = std::make_shared<const std::vector<Contribution>>(
        std::exchange(contributions_, std::vector<Contribution>(global_ranks_.size())));
    has_contributed_.assign(has_contributed_.size(), false);
    contribution_count_ = read_count_ = 0;
    ++round_;
    changed_.notify_all();
  }

  // The last reader takes the reference of the store, so that the store does not keep the objects alive.
  Contributions read() { return ++read_count_ == rank_count() ? std::exchange(published_, {}) : published_; }

  void wait(std::unique_lock<std::mutex>& lock, int rank, uint64_t round) {
    const std::chrono::nanoseconds period(poll_nanoseconds(rank_count()));
    const auto deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_seconds_));
    DeadlockWatch watch;
    while (round_ == round) {
      throw_if_aborted();
      if (Clock::now() >= deadline) throw_timeout(rank);
      if (any_returned()) throw_if_missing_rank_returned(rank);
      if (changed_.wait_until(lock, std::min(deadline, Clock::now() + period)) != std::cv_status::timeout) continue;
      const std::string deadlock =
          watch.poll([what = std::string(collective_purpose().what)] { return bootstrap_wait_text(what); });
      if (deadlock.empty()) continue;
      record_abort(deadlock);
      throw CommunicationError(deadlock);
    }
  }

  bool find_abort(std::string* why) const {
    if (!aborted_) return parent_ != nullptr && parent_->aborted(why);
    if (why != nullptr) *why = why_;
    return true;
  }

  void throw_if_aborted() const {
    std::string why;
    if (find_abort(&why)) throw_abort(why);
  }

  /// Returns whether the body of any rank of the world has returned.
  bool any_returned() const { return parent_ == nullptr ? any_returned_.load() : parent_->any_returned(); }

  void throw_if_missing_rank_returned(int rank) {
    for (int r = 0; r < rank_count(); ++r) {
      if (!has_contributed_[r] && has_returned(r)) throw_rank_returned(rank, r);
    }
  }

  /// Returns whether the body of the rank has returned. Only the store of the world records this.
  bool has_returned(int rank) const {
    if (parent_ == nullptr) return returned_[rank];
    const int rank_of_parent = parent_->rank_of(global_rank(rank));
    const std::lock_guard lock(parent_->mutex_);
    return parent_->has_returned(rank_of_parent);
  }
  int rank_of(int number) const {
    return static_cast<int>(std::find(global_ranks_.begin(), global_ranks_.end(), number) - global_ranks_.begin());
  }

  /// Throws if ranks have different purposes, because they would misinterpret each other's bytes.
  void check_same_purpose(int first, int rank) {
    if (contributions_[first].purpose == contributions_[rank].purpose) return;
    record_abort(different_purposes_text(global_rank(first), contributions_[first].purpose, global_rank(rank),
                                         contributions_[rank].purpose));
    throw_abort(why_);
  }

  void record_abort(std::string_view why) {
    if (!aborted_) why_ = why;
    aborted_ = true;
    changed_.notify_all();
  }

  [[noreturn]] void throw_timeout(int rank) {
    std::vector<MissingRank> missing;
    for (int r = 0; r < rank_count(); ++r) {
      if (!has_contributed_[r]) missing.push_back({global_rank(r)});
    }
    record_abort(bootstrap_timeout_text(global_rank(rank), timeout_seconds_, missing));
    throw_abort(why_);
  }

  [[noreturn]] void throw_rank_returned(int rank, int missing) {
    record_abort(fmt::format("rank {} waits {}, but rank {} has returned from its function", global_rank(rank),
                             bootstrap_wait_text(collective_purpose().what), global_rank(missing)));
    throw_abort(why_);
  }

  const std::vector<int> global_ranks_;
  const double timeout_seconds_;
  const std::shared_ptr<ThreadsBootstrapStore> parent_;
  mutable std::mutex mutex_;  // locked before the mutex of the parent
  std::condition_variable changed_;
  uint64_t round_ = 0;
  std::atomic<int> contribution_count_ = 0;
  int read_count_ = 0, first_contributor_ = 0;
  // All ranks read published_ before it is overwritten, because a rank contributes to the next round only after it has
  // read the previous one.
  std::vector<Contribution> contributions_;
  Contributions published_;
  std::vector<bool> has_contributed_;
  std::vector<bool> returned_;
  std::atomic<bool> any_returned_ = false;
  bool aborted_ = false;
  std::string why_;
};

namespace {

class ThreadsBootstrap final : public Bootstrap {
 public:
  ThreadsBootstrap(std::shared_ptr<ThreadsBootstrapStore> store, int rank) : store_(std::move(store)), rank_(rank) {}

  int rank() const override { return rank_; }
  int rank_count() const override { return store_->rank_count(); }
  int global_rank(int rank) const override { return store_->global_rank(rank); }

  std::vector<std::string> all_gather(std::string_view own) override {
    const Contributions gathered = store_->all_gather(rank_, {std::string(own), nullptr});
    std::vector<std::string> all;
    all.reserve(gathered->size());
    for (const Contribution& contribution : *gathered) all.push_back(contribution.bytes);
    return all;
  }

  std::vector<std::shared_ptr<void>> all_gather_objects(std::shared_ptr<void> own) override {
    const Contributions gathered = store_->all_gather(rank_, {{}, std::move(own)});
    std::vector<std::shared_ptr<void>> all;
    all.reserve(gathered->size());
    for (const Contribution& contribution : *gathered) all.push_back(contribution.object);
    return all;
  }

  std::shared_ptr<void> object_of(int rank, std::shared_ptr<void> own) override {
    return (*store_->all_gather(rank_, {{}, std::move(own)}))[rank].object;
  }

  std::unique_ptr<Bootstrap> split(int color, int key) override {
    const RankGroup group = agree_on_group(*this, color, key);
    // The first rank of each group creates the group's store.
    std::shared_ptr<ThreadsBootstrapStore> store;
    if (group.rank == 0)
      store = std::make_shared<ThreadsBootstrapStore>(group.global_ranks(*this), store_->timeout_seconds(), store_);
    store = object_from_thread(*this, group.members.front(), std::move(store));
    return make_threads_bootstrap(std::move(store), group.rank);
  }

  void abort(std::string_view why) noexcept override { store_->abort(why); }
  bool aborted(std::string* why) const override { return store_->aborted(why); }
  bool has_returned(int rank) const override { return store_->returned(rank); }
  std::string awaited_by(int rank) const override { return store_->purpose_of_wait(rank, rank_); }

 private:
  std::shared_ptr<ThreadsBootstrapStore> store_;
  int rank_;
};

}  // namespace

std::shared_ptr<ThreadsBootstrapStore> make_threads_bootstrap_store(int rank_count, double timeout_seconds) {
  std::vector<int> global_ranks(static_cast<std::size_t>(rank_count));
  std::iota(global_ranks.begin(), global_ranks.end(), 0);
  return std::make_shared<ThreadsBootstrapStore>(std::move(global_ranks), timeout_seconds, nullptr);
}

std::unique_ptr<Bootstrap> make_threads_bootstrap(std::shared_ptr<ThreadsBootstrapStore> store, int rank) {
  return std::make_unique<ThreadsBootstrap>(std::move(store), rank);
}

void abort(ThreadsBootstrapStore& store, std::string_view why) noexcept { store.abort(why); }

void mark_returned(ThreadsBootstrapStore& store, int rank) noexcept { store.mark_returned(rank); }

}  // namespace aliquot
