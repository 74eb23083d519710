#include "kernels/ledger.h"

#include <algorithm>
#include <fmt/format.h>

#include "kernels/error.h"

namespace aliquot {

std::string_view name(Category category) {
  static constexpr std::array<std::string_view, kCategoryCount> kNames = {
      "parameters", "gradients", "optimizer", "slots", "communication", "staging", "activations", "arena"};
  return kNames[static_cast<std::size_t>(category)];
}

Ledger::EntryId Ledger::acquire(Category category, int64_t size_bytes, std::string_view owner) {
  const std::lock_guard lock(mutex_);
  if (free_entries_.empty()) {
    free_entries_.push_back(static_cast<EntryId>(entries_.size()));
    entries_.emplace_back().owner.reserve(kOwnerCapacity);
    free_entries_.reserve(entries_.capacity());  // so that release() never allocates
  }
  const EntryId id = free_entries_.back();
  free_entries_.pop_back();
  Entry& entry = entries_[id];
  entry.category = category;
  entry.size_bytes = size_bytes;
  entry.owner.assign(owner);
  auto& current = current_[static_cast<std::size_t>(category)];
  auto& peak = peak_[static_cast<std::size_t>(category)];
  current += size_bytes;
  peak = std::max(peak, current);
  in_use_bytes_ += size_bytes;
  in_use_peak_bytes_ = std::max(in_use_peak_bytes_, in_use_bytes_);
  return id;
}

void Ledger::release(EntryId id) noexcept {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[id];
  current_[static_cast<std::size_t>(entry.category)] -= entry.size_bytes;
  in_use_bytes_ -= entry.size_bytes;
  entry.size_bytes = 0;
  entry.owner.clear();
  free_entries_.push_back(id);
}

void Ledger::hold(int64_t size_bytes, std::string_view owner) {
  const std::lock_guard lock(mutex_);
  if (limit_bytes_ > 0 && held_bytes_ + size_bytes > limit_bytes_) {
    throw UnavailableError(fmt::format("{} needs {} bytes, but the limit is {} bytes and {} are held already", owner,
                                       size_bytes, limit_bytes_, held_bytes_));
  }
  held_bytes_ += size_bytes;
  held_peak_bytes_ = std::max(held_peak_bytes_, held_bytes_);
}

void Ledger::let_go(int64_t size_bytes) noexcept {
  const std::lock_guard lock(mutex_);
  held_bytes_ -= size_bytes;
}

void Ledger::set_limit_bytes(int64_t limit_bytes) {
  const std::lock_guard lock(mutex_);
  limit_bytes_ = limit_bytes;
}

int64_t Ledger::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return held_bytes_;
}

int64_t Ledger::held_peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return held_peak_bytes_;
}

int64_t Ledger::in_use_bytes() const {
  const std::lock_guard lock(mutex_);
  return in_use_bytes_;
}

int64_t Ledger::in_use_peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return in_use_peak_bytes_;
}

BytesByCategory Ledger::current() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

BytesByCategory Ledger::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

void Ledger::reset_peaks() {
  const std::lock_guard lock(mutex_);
  peak_ = current_;
  in_use_peak_bytes_ = in_use_bytes_;
  held_peak_bytes_ = held_bytes_;
}

std::vector<Ledger::Entry> Ledger::entries() const {
  std::vector<Entry> alive;
  {
    const std::lock_guard lock(mutex_);
    std::vector<bool> is_free(entries_.size(), false);
    for (const EntryId id : free_entries_) is_free[id] = true;
    for (std::size_t id = 0; id < entries_.size(); ++id) {
      if (!is_free[id]) alive.push_back(entries_[id]);
    }
  }
  std::stable_sort(alive.begin(), alive.end(),
                   [](const Entry& a, const Entry& b) { return a.size_bytes > b.size_bytes; });
  return alive;
}

}  // namespace aliquot
