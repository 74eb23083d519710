#include "kernels/system/ledger.h"

#include <algorithm>
#include <exception>
#include <fmt/format.h>
#include <limits>
#include <stdexcept>

#include "kernels/system/error.h"
#include "kernels/system/log_message.h"

namespace aliquot {
namespace {

constexpr int64_t kMaxBytes = std::numeric_limits<int64_t>::max();

void require_non_negative(int64_t size_bytes, std::string_view owner) {
  if (size_bytes < 0) {
    throw std::logic_error(fmt::format("invalid size {} bytes for {}: expected 0 or more", size_bytes, owner));
  }
}

// Logs a second release of an entry, because the caller may also have freed its memory twice. The ledger ignores such a
// release, so the counts stay correct.
void log_double_release(const char* function) noexcept {
  log_message("Ledger::{}() was called twice for one entry, or for an entry that never existed: a bug in the caller",
              std::string_view(function));
}

}  // namespace

std::string_view name(Category category) {
  static constexpr std::array<std::string_view, kCategoryCount> kNames = {
      "parameters", "gradients", "optimizer", "slots", "communication", "staging", "activations", "arena"};
  return kNames[static_cast<std::size_t>(category)];
}

Ledger::EntryId Ledger::acquire(Category category, int64_t size_bytes, std::string_view owner) {
  require_non_negative(size_bytes, owner);
  const std::lock_guard lock(mutex_);
  if (size_bytes > kMaxBytes - in_use_bytes_) {
    throw UnavailableError(
        fmt::format("cannot allocate {} bytes for {}: {} bytes are in use, and the total would overflow 64 bits",
                    size_bytes, owner, in_use_bytes_));
  }
  const EntryId id = in_use_.add(category, size_bytes, owner);
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
  const Entry* entry = in_use_.find(id);
  if (entry == nullptr) return log_double_release("release");
  current_[static_cast<std::size_t>(entry->category)] -= entry->size_bytes;
  in_use_bytes_ -= entry->size_bytes;
  in_use_.remove(id);
}

Ledger::EntryId Ledger::hold(Category category, int64_t size_bytes, std::string_view owner) {
  require_non_negative(size_bytes, owner);
  const std::lock_guard lock(mutex_);
  const int64_t limit_bytes = limit_bytes_ > 0 ? limit_bytes_ : kMaxBytes;
  if (size_bytes > limit_bytes - held_bytes_) {  // subtracts, because a sum could overflow
    throw UnavailableError(fmt::format("cannot allocate {} bytes for {}: the limit is {} bytes, and {} are allocated",
                                       size_bytes, owner, limit_bytes, held_bytes_));
  }
  const EntryId id = held_.add(category, size_bytes, owner);
  held_bytes_ += size_bytes;
  held_peak_bytes_ = std::max(held_peak_bytes_, held_bytes_);
  return id;
}

void Ledger::let_go(EntryId id) noexcept {
  const std::lock_guard lock(mutex_);
  const Entry* entry = held_.find(id);
  if (entry == nullptr) return log_double_release("let_go");
  held_bytes_ -= entry->size_bytes;
  held_.remove(id);
}

Ledger::~Ledger() {
  // Reports nothing after a failure. Memory that messages in flight may still access is then leaked on purpose.
  if (std::uncaught_exceptions() > 0) return;
  held_.for_each([](const Entry& entry) {
    log_message("memory was never released: {}, {} bytes, category {}", entry.owner, entry.size_bytes,
                name(entry.category));
  });
}

void Ledger::set_limit_bytes(int64_t limit_bytes) {
  if (limit_bytes < 0) {
    throw std::logic_error(fmt::format("invalid memory limit {} bytes: expected 0 (no limit) or more", limit_bytes));
  }
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
    in_use_.for_each([&alive](const Entry& entry) { alive.push_back(entry); });
  }
  std::stable_sort(alive.begin(), alive.end(),
                   [](const Entry& a, const Entry& b) { return a.size_bytes > b.size_bytes; });
  return alive;
}

// Returns the id of the entry. Its low 32 bits are the index of the slot, and its high 32 bits count the uses of the
// slot.
Ledger::EntryId Ledger::EntryTable::add(Category category, int64_t size_bytes, std::string_view owner) {
  if (free_slots_.empty()) add_free_slot();
  const uint32_t index = free_slots_.back();
  Slot& slot = slots_[index];
  slot.entry.owner.assign(owner);  // may throw; the slot is still free
  slot.entry.category = category;
  slot.entry.size_bytes = size_bytes;
  slot.alive = true;
  ++slot.uses;
  free_slots_.pop_back();
  return static_cast<EntryId>(slot.uses) << 32 | index;
}

const Ledger::Entry* Ledger::EntryTable::find(EntryId id) const noexcept {
  const auto index = static_cast<std::size_t>(id & 0xffffffff);
  if (index >= slots_.size()) return nullptr;
  const Slot& slot = slots_[index];
  return slot.alive && slot.uses == static_cast<uint32_t>(id >> 32) ? &slot.entry : nullptr;
}

void Ledger::EntryTable::remove(EntryId id) noexcept {
  const auto index = static_cast<uint32_t>(id & 0xffffffff);
  slots_[index].alive = false;
  slots_[index].entry.owner.clear();
  free_slots_.push_back(index);
}

void Ledger::EntryTable::add_free_slot() {
  const std::size_t count = slots_.size();
  if (free_slots_.capacity() <= count) free_slots_.reserve(2 * count + 16);
  Slot slot{};
  slot.entry.owner.reserve(kOwnerCapacity);
  slots_.push_back(std::move(slot));
  free_slots_.push_back(static_cast<uint32_t>(count));
}

}  // namespace aliquot
