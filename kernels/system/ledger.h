#pragma once
// Counts the memory of a device at run time, by category and owner.

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace aliquot {

enum class Category : uint8_t {
  kParameters,
  kGradients,
  kOptimizer,
  kSlots,          // full parameters and full gradients, which units use in turn
  kCommunication,  // internal buffers of communicators, such as partial sums
  kStaging,        // data on its way to or from a file or another device
  kActivations,
  kArena,  // contains buffers of the other categories; counted as held, never as in use
};
inline constexpr int kCategoryCount = 8;

/// Returns the name used in tables and metrics: "parameters", "gradients", ...
std::string_view name(Category category);

/// A number of bytes for each category.
using BytesByCategory = std::array<int64_t, kCategoryCount>;

/// Keeps two counts of one device's memory: memory that is allocated from the system (held), and memory that is in use,
/// by category. An arena is held once, while the buffers in it are acquired and released many times. Thread-safe. A
/// negative size throws std::logic_error. A call that throws counts nothing.
class Ledger {
 public:
  using EntryId = int64_t;  // unique; never reused

  Ledger() = default;
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;
  /// Logs each entry that is still held, unless an exception is unwinding the stack.
  ~Ledger();

  struct Entry {
    Category category;
    int64_t size_bytes;
    std::string owner;
  };

  /// Counts `size_bytes` as in use by `owner` until release(). Allocates heap memory only if the number of entries
  /// reaches a new maximum.
  EntryId acquire(Category category, int64_t size_bytes, std::string_view owner);
  /// Removes an entry that acquire() added. A second call for the same entry is logged and otherwise ignored.
  void release(EntryId entry) noexcept;

  /// Counts `size_bytes` as held by `owner` until let_go(). Throws UnavailableError, with owner, limit and held bytes,
  /// if the total would exceed the limit.
  EntryId hold(Category category, int64_t size_bytes, std::string_view owner);
  /// Removes an entry that hold() added. A second call for the same entry is logged and otherwise ignored.
  void let_go(EntryId entry) noexcept;

  /// Sets the maximum number of bytes that may be held. 0 means no limit.
  void set_limit_bytes(int64_t limit_bytes);

  int64_t held_bytes() const;
  int64_t held_peak_bytes() const;
  int64_t in_use_bytes() const;       // the current sum over categories
  int64_t in_use_peak_bytes() const;  // the maximum of in_use_bytes(), which may be less than the sum of peak()
  BytesByCategory current() const;
  BytesByCategory peak() const;
  void reset_peaks();

  /// Returns the entries that are in use, the largest first.
  std::vector<Entry> entries() const;

 private:
  /// A table of entries. A new entry may reuse the memory of a removed entry, but never its id.
  class EntryTable {
   public:
    EntryId add(Category category, int64_t size_bytes, std::string_view owner);
    /// Returns null if the entry was removed.
    const Entry* find(EntryId id) const noexcept;
    void remove(EntryId id) noexcept;
    template <typename Visit>
    void for_each(Visit&& visit) const {
      for (const Slot& slot : slots_) {
        if (slot.alive) visit(slot.entry);
      }
    }

   private:
    static constexpr std::size_t kOwnerCapacity = 63;  // longer owner names need a heap allocation
    struct Slot {
      Entry entry;
      uint32_t uses;
      bool alive;
    };
    void add_free_slot();

    std::vector<Slot> slots_;
    std::vector<uint32_t> free_slots_;  // has capacity for all slots, so that remove() never allocates
  };

  mutable std::mutex mutex_;
  EntryTable in_use_, held_;
  BytesByCategory current_{}, peak_{};
  int64_t in_use_bytes_ = 0, in_use_peak_bytes_ = 0;
  int64_t held_bytes_ = 0, held_peak_bytes_ = 0, limit_bytes_ = 0;
};

}  // namespace aliquot
#pragma GCC visibility pop
