#include "kernels/system/deadlock_watch.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <utility>

namespace aliquot {
namespace {

thread_local RankThreads::Entry* current = nullptr;

}  // namespace

RankThreads::Own::Own(RankThreads* threads, int rank) : threads_(threads) {
  if (threads_ == nullptr) return;
  before_ = std::exchange(current, &threads_->add({threads_, rank, nullptr, nullptr}));
  const std::lock_guard lock(threads_->mutex_);
  --threads_->absent_;
  ++threads_->running_;
}

RankThreads::Own::~Own() {
  if (threads_ == nullptr) return;
  threads_->erase(std::exchange(current, before_));
  const std::lock_guard lock(threads_->mutex_);
  ++threads_->absent_;
  --threads_->running_;
}

RankThreads::Worker::Worker(const SharedCounter& submitted, const SharedCounter& completed)
    : entry_(current == nullptr ? nullptr
                                : &current->threads->add({current->threads, current->rank, &submitted, &completed})) {}

RankThreads::Worker::~Worker() {
  if (entry_ != nullptr) entry_->threads->erase(entry_);
}

void RankThreads::Worker::enter() const { current = entry_; }

RankThreads::Entry& RankThreads::add(Entry entry) {
  const std::lock_guard lock(mutex_);
  ++changes_;
  entry.number = ++number_;
  return entries_.emplace(number_, std::move(entry)).first->second;
}

void RankThreads::erase(const Entry* entry) {
  const std::lock_guard lock(mutex_);
  ++changes_;
  entries_.erase(entry->number);
}

/// Returns whether every thread waits or has no task. Adds up the numbers of tasks.
bool RankThreads::all_wait(uint64_t& tasks) const {
  if (absent_ + running_ > 0) return false;
  for (const auto& [number, entry] : entries_) {
    if (entry.submitted == nullptr) continue;
    const uint64_t completed = entry.completed->value(), submitted = entry.submitted->value();
    if (!entry.waits && completed != submitted) return false;
    tasks += completed + submitted;
  }
  return true;
}

/// If all threads wait, and none has begun or ended a wait or a task since an earlier call, then none has acted since.
/// If every waiting thread has also found its condition false after that call, no condition can ever become true. Of
/// two checks, the second one certainly came after that call.
std::string RankThreads::check(Entry& own) {
  const std::lock_guard lock(mutex_);
  uint64_t tasks = 0;
  if (!all_wait(tasks)) return {};
  if (changes_ != seen_changes_ || tasks != seen_tasks_) {
    seen_changes_ = changes_, seen_tasks_ = tasks;
    for (auto& [number, entry] : entries_) entry.checks = 0;
  }
  ++own.checks;
  const auto checked = [](const auto& each) { return !each.second.waits || each.second.checks >= 2; };
  const bool stuck = std::ranges::all_of(entries_, checked);
  return stuck ? text() : std::string();
}

/// Describes the wait of each rank: that of its own thread if it has a text, otherwise that of its first worker.
std::string RankThreads::text() const {
  std::map<int, std::string> waits;
  for (const bool own : {true, false}) {
    for (const auto& [number, entry] : entries_) {
      if ((entry.submitted == nullptr) != own || !entry.waits || !waits[entry.rank].empty()) continue;
      waits[entry.rank] = entry.describe();
    }
  }
  std::string all;
  for (const auto& [rank, wait] : waits) {
    if (!wait.empty()) all += fmt::format("{}rank {} waits {}", all.empty() ? "" : ", ", rank, wait);
  }
  return fmt::format("no rank can continue: {}: all ranks must make the same calls in the same order", all);
}

void RankThreads::begin(Entry& own, std::function<std::string()> describe) {
  const std::lock_guard lock(mutex_);
  own.waits = true;
  if (own.submitted == nullptr) --running_;
  own.describe = std::move(describe);
  ++changes_;
}

void RankThreads::end(Entry& own) {
  const std::lock_guard lock(mutex_);
  own.waits = false;
  if (own.submitted == nullptr) ++running_;
  own.describe = {};
  ++changes_;
}

bool DeadlockWatch::begin(std::function<std::string()> describe) {
  if (current == nullptr) return false;
  entry_ = current;
  entry_->threads->begin(*entry_, std::move(describe));
  return true;
}

DeadlockWatch::~DeadlockWatch() {
  if (entry_ != nullptr) entry_->threads->end(*entry_);
}

}  // namespace aliquot
