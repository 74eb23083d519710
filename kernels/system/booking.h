#pragma once
// RAII for entries of a ledger.

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/system/ledger.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Counts bytes as held while it exists and, unless the category is kArena, also as in use. Move-only. Must not outlive
/// the ledger. The constructor throws like Ledger::hold() and Ledger::acquire(). If it throws, nothing is counted.
class Booking {
 public:
  Booking(Ledger& ledger, int64_t size_bytes, Category category, std::string_view owner)
      : ledger_(&ledger), held_(ledger.hold(category, size_bytes, owner)) {
    if (category == Category::kArena) return;
    try {
      in_use_ = ledger.acquire(category, size_bytes, owner);
    } catch (...) {
      ledger.let_go(held_);
      throw;
    }
  }
  Booking(Booking&& other) noexcept
      : ledger_(std::exchange(other.ledger_, nullptr)), held_(other.held_), in_use_(other.in_use_) {}
  Booking& operator=(Booking&&) = delete;
  ~Booking() {
    if (ledger_ == nullptr) return;
    if (in_use_) ledger_->release(*in_use_);
    ledger_->let_go(held_);
  }

 private:
  Ledger* ledger_;
  Ledger::EntryId held_;
  std::optional<Ledger::EntryId> in_use_;
};

}  // namespace aliquot
#pragma GCC visibility pop
