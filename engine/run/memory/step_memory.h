#pragma once
// Addresses and lifetimes of a plan's buffers during a step.

#include <memory>
#include <vector>

#include "engine/plan/buffers_in_use.h"
#include "engine/run/memory/access_check.h"
#include "engine/run/memory/arena.h"
#include "engine/run/memory/offload_stores.h"

namespace aliquot {

/// Tracks which buffers exist, and counts them in the ledger. Operations pass the mode of each access. Debug and
/// sanitizer builds compare the accesses with those that Accesses declares (AccessCheck). Used from the rank's own
/// thread. Everything passed must outlive it.
class StepMemory {
 public:
  struct Parts {
    const Plan& plan;
    const Arena& arena;
    const OffloadStores& offload_stores;
    Ledger& ledger;
    int rank;
  };
  /// `books_persistent`: whether to count persistent buffers in the ledger. Exactly one StepMemory of an arena must do
  /// so.
  explicit StepMemory(const Parts& parts, bool books_persistent = true);

  ~StepMemory();
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;

  /// Begins the lifetime of a buffer. Until release(), current() returns the buffer for its role and owner.
  void acquire(BufferId buffer);
  void release(BufferId buffer);

  /// Returns the current buffer with this role and owner, or kNoBuffer. If each micro-batch has a separate buffer,
  /// returns the buffer of the current operation's micro-batch.
  BufferId current(Role role, int32_t flat) const;
  /// Until end_operation(), accesses belong to this operation and its micro-batch.
  void begin_operation(OperationId operation);
  void end_operation() const;
  /// Allows the current operation to omit its declared accesses.
  void skip_operation() const;

  /// Returns the address of the current buffer on this rank, for an access of the current operation. Returns null if
  /// there is no such buffer. In the shared range, the result is the address of this rank's part. For offload stores,
  /// see OffloadStore::base().
  std::byte* address(Role role, int32_t flat, AccessMode how) const;
  /// Like address(), but returns a range for collectives of `group`.
  SymmetricRange range(Role role, int32_t flat, AccessMode how, GroupId group = GroupId::kShard) const;
  /// Declares an access of the current operation without returning the address.
  void declare_access(Role role, int32_t flat, AccessMode how) const;

  /// Like address() without AccessCheck, for initialization and other code outside of operations.
  std::byte* peek(BufferId buffer) const;
  std::byte* peek(Role role, int32_t flat) const { return peek(current(role, flat)); }
  /// The address at which the data of a role is stored between steps. If the data is offloaded, the address is in the
  /// offload store.
  std::byte* address_between_steps(Role role, int32_t flat) const;

  /// This rank's shard of the working copy of the parameters.
  std::byte* own_shard(int32_t flat) const;
  /// Returns the full parameters: the persistent copy, the slot of the gather, or the view. Returns null if the unit is
  /// not gathered.
  std::byte* full_parameters(int32_t flat) const;

 private:
  const PlannedBuffer& planned(BufferId buffer) const { return plan_.schedule.buffers[buffer]; }

  const Plan& plan_;
  const Arena& arena_;
  const OffloadStores& offload_stores_;
  int rank_;
  Ledger& ledger_;
  BuffersInUse in_use_;
  int32_t micro_batch_ = 0;               // micro-batch of the current operation
  std::vector<Ledger::EntryId> entries_;  // ledger entry of each buffer
  std::vector<std::string> owners_;       // owner of each buffer, as the ledger shows it
  std::unique_ptr<AccessCheck> check_;    // only in debug and sanitizer builds
};

}  // namespace aliquot
