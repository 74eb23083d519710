#pragma once
// Who holds how many bytes of what, counted as it happens.

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
  kSlots,          // where units take turns being whole
  kCommunication,  // what moving bytes needs besides: boards, mailboxes, partial sums
  kStaging,        // on the way to or from a file or another device
  kActivations,
  kArena,  // backing memory that other categories live in; counted as held, never as in use
};
inline constexpr int kCategoryCount = 8;

/// The name used in tables and metrics: "parameters", "gradients", ...
std::string_view name(Category category);

/// One figure a category, in bytes.
using BytesByCategory = std::array<int64_t, kCategoryCount>;

/// Counts one device's memory twice over: what was taken from the system (held), and what is in use by category, where
/// an arena's buffers are acquired and released again and again within memory that is held once. Thread-safe. Sizes are
/// never negative: std::logic_error, as what would be a bug; and a call that throws has counted nothing.
class Ledger {
 public:
  using EntryId = int64_t;  // never given out twice

  Ledger() = default;
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;
  /// Names on standard error what is still held, unless an exception is unwinding: the leaks.
  ~Ledger();

  struct Entry {
    Category category;
    int64_t size_bytes;
    std::string owner;
  };

  /// Counts `size_bytes` as in use by `owner` until release(). Allocates only when more entries are alive than ever before.
  EntryId acquire(Category category, int64_t size_bytes, std::string_view owner);
  /// Once an entry; a second time is said on standard error and not counted.
  void release(EntryId entry) noexcept;

  /// Counts memory taken from the system, until let_go(). Throws UnavailableError, naming owner, limit and what is held,
  /// if it would exceed the limit.
  EntryId hold(Category category, int64_t size_bytes, std::string_view owner);
  /// As release().
  void let_go(EntryId entry) noexcept;

  /// Bytes that may be held at most; 0 is no limit.
  void set_limit_bytes(int64_t limit_bytes);

  int64_t held_bytes() const;
  int64_t held_peak_bytes() const;
  int64_t in_use_bytes() const;       // the sum over categories, now
  int64_t in_use_peak_bytes() const;  // the largest that sum has been; not the sum of the peaks
  BytesByCategory current() const;
  BytesByCategory peak() const;
  void reset_peaks();

  /// What is in use now, the largest first.
  std::vector<Entry> entries() const;

 private:
  /// Entries, in places that are used again, under another id.
  class EntryTable {
   public:
    EntryId add(Category category, int64_t size_bytes, std::string_view owner);
    /// Null for one that is gone.
    const Entry* find(EntryId id) const noexcept;
    void remove(EntryId id) noexcept;
    template <typename Visit>
    void for_each(Visit&& visit) const {
      for (const Slot& slot : slots_) {
        if (slot.alive) visit(slot.entry);
      }
    }

   private:
    static constexpr std::size_t kOwnerCapacity = 63;  // longer owners allocate
    struct Slot {
      Entry entry;
      uint32_t uses;
      bool alive;
    };
    void add_free_slot();

    std::vector<Slot> slots_;
    std::vector<uint32_t> free_slots_;  // has room for all, so that giving one back never allocates
  };

  mutable std::mutex mutex_;
  EntryTable in_use_, held_;
  BytesByCategory current_{}, peak_{};
  int64_t in_use_bytes_ = 0, in_use_peak_bytes_ = 0;
  int64_t held_bytes_ = 0, held_peak_bytes_ = 0, limit_bytes_ = 0;
};

}  // namespace aliquot
#pragma GCC visibility pop
