#include "kernels/system/ledger.h"

#include <algorithm>
#include <exception>
#include <fmt/format.h>
#include <limits>
#include <stdexcept>

#include "kernels/system/error.h"
#include "kernels/system/tell.h"

namespace aliquot {
namespace {

constexpr int64_t kMostBytes = std::numeric_limits<int64_t>::max();

void refuse_negative(int64_t size_bytes, std::string_view owner) {
  if (size_bytes < 0) throw std::logic_error(fmt::format("{} asks for {} bytes", owner, size_bytes));
}

// The counts stay right and the run unharmed; but somebody else's memory may have been given back in the same way.
void say_twice(const char* what) noexcept {
  tell("memory was {} twice, or was never booked, which is a bug of the program", std::string_view(what));
}

}  // namespace

std::string_view name(Category category) {
  static constexpr std::array<std::string_view, kCategoryCount> kNames = {
      "parameters", "gradients", "optimizer", "slots", "communication", "staging", "activations", "arena"};
  return kNames[static_cast<std::size_t>(category)];
}

Ledger::EntryId Ledger::acquire(Category category, int64_t size_bytes, std::string_view owner) {
  refuse_negative(size_bytes, owner);
  const std::lock_guard lock(mutex_);
  if (size_bytes > kMostBytes - in_use_bytes_) {
    throw UnavailableError(fmt::format("{} needs {} bytes, which no machine has besides the {} in use already", owner,
                                       size_bytes, in_use_bytes_));
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
  if (entry == nullptr) return say_twice("released");
  current_[static_cast<std::size_t>(entry->category)] -= entry->size_bytes;
  in_use_bytes_ -= entry->size_bytes;
  in_use_.remove(id);
}

Ledger::EntryId Ledger::hold(Category category, int64_t size_bytes, std::string_view owner) {
  refuse_negative(size_bytes, owner);
  const std::lock_guard lock(mutex_);
  const int64_t limit_bytes = limit_bytes_ > 0 ? limit_bytes_ : kMostBytes;
  if (size_bytes > limit_bytes - held_bytes_) {  // their sum might be larger than any number
    throw UnavailableError(fmt::format("{} needs {} bytes, but the limit is {} bytes and {} are held already", owner,
                                       size_bytes, limit_bytes, held_bytes_));
  }
  const EntryId id = held_.add(category, size_bytes, owner);
  held_bytes_ += size_bytes;
  held_peak_bytes_ = std::max(held_peak_bytes_, held_bytes_);
  return id;
}

void Ledger::let_go(EntryId id) noexcept {
  const std::lock_guard lock(mutex_);
  const Entry* entry = held_.find(id);
  if (entry == nullptr) return say_twice("let go");
  held_bytes_ -= entry->size_bytes;
  held_.remove(id);
}

Ledger::~Ledger() {
  // A failure may leave memory behind on purpose, to which messages still come; and its own sentence is the one to read.
  if (std::uncaught_exceptions() > 0) return;
  held_.for_each([](const Entry& entry) {
    tell("still held at the end: {}, {} bytes, {}", entry.owner, entry.size_bytes, name(entry.category));
  });
}

void Ledger::set_limit_bytes(int64_t limit_bytes) {
  if (limit_bytes < 0) throw std::logic_error(fmt::format("a limit of {} bytes", limit_bytes));
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

// An id is the line's place and how often it has been used.
Ledger::EntryId Ledger::Lines::add(Category category, int64_t size_bytes, std::string_view owner) {
  if (free_lines_.empty()) add_free_line();
  const uint32_t place = free_lines_.back();
  Line& line = lines_[place];
  line.entry.owner.assign(owner);  // the last that may throw: until here the line is free
  line.entry.category = category;
  line.entry.size_bytes = size_bytes;
  line.alive = true;
  ++line.uses;
  free_lines_.pop_back();
  return static_cast<EntryId>(line.uses) << 32 | place;
}

const Ledger::Entry* Ledger::Lines::find(EntryId id) const noexcept {
  const auto place = static_cast<std::size_t>(id & 0xffffffff);
  if (place >= lines_.size()) return nullptr;
  const Line& line = lines_[place];
  return line.alive && line.uses == static_cast<uint32_t>(id >> 32) ? &line.entry : nullptr;
}

void Ledger::Lines::remove(EntryId id) noexcept {
  const auto place = static_cast<uint32_t>(id & 0xffffffff);
  lines_[place].alive = false;
  lines_[place].entry.owner.clear();
  free_lines_.push_back(place);
}

void Ledger::Lines::add_free_line() {
  const std::size_t count = lines_.size();
  if (free_lines_.capacity() <= count) free_lines_.reserve(2 * count + 16);
  Line line{};
  line.entry.owner.reserve(kOwnerCapacity);
  lines_.push_back(std::move(line));
  free_lines_.push_back(static_cast<uint32_t>(count));
}

}  // namespace aliquot
