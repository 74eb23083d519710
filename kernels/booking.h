#pragma once
// A ledger's entry as an object.

#include <cstdint>
#include <string_view>
#include <utility>

#include "kernels/ledger.h"

namespace aliquot {

/// Bytes that count while it lives: as held, and, unless they are an arena, as in use too. Move-only; must not outlive
/// the ledger. Throws what Ledger::hold throws, and then nothing is counted.
class Booking {
 public:
  Booking(Ledger& ledger, int64_t size_bytes, Category category, std::string_view owner)
      : ledger_(&ledger), size_bytes_(size_bytes), in_use_(category != Category::kArena) {
    ledger.hold(size_bytes, owner);
    if (in_use_) entry_ = ledger.acquire(category, size_bytes, owner);
  }
  Booking(Booking&& other) noexcept
      : ledger_(std::exchange(other.ledger_, nullptr)),
        size_bytes_(other.size_bytes_),
        in_use_(other.in_use_),
        entry_(other.entry_) {}
  Booking& operator=(Booking&&) = delete;
  ~Booking() {
    if (ledger_ == nullptr) return;
    if (in_use_) ledger_->release(entry_);
    ledger_->let_go(size_bytes_);
  }

 private:
  Ledger* ledger_;
  int64_t size_bytes_;
  bool in_use_;
  Ledger::EntryId entry_ = 0;
};

}  // namespace aliquot
