#pragma once
// A plan's buffers as addresses.

#include <memory>
#include <vector>

#include "engine/run/memory/access_check.h"
#include "engine/run/memory/arena.h"
#include "engine/run/memory/offload_stores.h"

namespace aliquot {

/// Which buffer is at which place of the arena now, counted in the ledger. Operations say how they touch what they ask for;
/// debug and sanitizer builds hold them to what Accesses declares (AccessCheck). All it is given must outlive it. Used
/// from the rank's own thread.
class StepMemory {
 public:
  /// Buffers that are always there are booked by the first memory of an arena alone: `books_persistent`.
  struct Parts {
    const Plan& plan;
    const Arena& arena;
    const OffloadStores& offload_stores;
    Ledger& ledger;
    int rank;
  };
  explicit StepMemory(const Parts& parts, bool books_persistent = true);

  ~StepMemory();
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;

  /// The buffer is in use from now on; until release() it is what current() gives for its role and flat.
  void acquire(BufferId buffer);
  void release(BufferId buffer);

  /// The buffer of that role that is in use for the flat, or kNoBuffer.
  BufferId current(Role role, int32_t flat) const;
  /// The operation that touches buffers from now on, and its end.
  void begin_operation(OperationId operation) const;
  void end_operation() const;
  /// The operation that has begun leaves its work undone.
  void skip_operation() const;

  /// The buffer that an operation touches, on this rank; null where there is none in use. In the shared range: this rank's
  /// own part. Of a home: what names it.
  std::byte* address(Role role, int32_t flat, AccessMode how) const;
  /// The same, as collectives take it.
  SymmetricRange range(Role role, int32_t flat, AccessMode how) const;
  /// Declares the touch of a buffer whose address the operation has already.
  void declare_access(Role role, int32_t flat, AccessMode how) const;

  /// The address for what is no operation: set-up, and what looks at memory between operations.
  std::byte* peek(BufferId buffer) const;
  std::byte* peek(Role role, int32_t flat) const { return peek(current(role, flat)); }
  /// Between steps: the role's home where it is offloaded.
  std::byte* address_between_steps(Role role, int32_t flat) const;

  /// The own shard of the parameters as the model computes with them.
  std::byte* own_shard(int32_t flat) const;
  /// The whole parameters as this rank reads them now: the standing copy, the slot they were gathered into, or the view.
  /// Null while the flat is not whole.
  std::byte* full_parameters(int32_t flat) const;

 private:
  const PlannedBuffer& planned(BufferId buffer) const { return plan_.schedule.buffers[buffer]; }
  BufferId& current_slot(const PlannedBuffer& buffer);

  const Plan& plan_;
  const Arena& arena_;
  const OffloadStores& offload_stores_;
  int rank_;
  Ledger& ledger_;
  std::vector<std::vector<BufferId>> current_;  // by role, then whose; nobody's is the last
  std::vector<Ledger::EntryId> entries_;        // by buffer
  std::vector<std::string> owners_;             // by buffer, so that acquiring allocates nothing
  std::unique_ptr<AccessCheck> check_;          // in builds that check
};

}  // namespace aliquot
