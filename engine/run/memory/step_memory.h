#pragma once
// The addresses of a plan's buffers during a step.

#include <memory>
#include <vector>

#include "engine/run/memory/access_check.h"
#include "engine/run/memory/arena.h"
#include "engine/run/memory/offload_stores.h"

namespace aliquot {

/// Tracks which buffers are in use, and books them in the ledger. Operations pass the mode of each access; debug and
/// sanitizer builds compare it with Accesses (AccessCheck). Used from the rank's own thread. Everything passed must
/// outlive it.
class StepMemory {
 public:
  /// `books_persistent`: book the persistent buffers. Exactly one StepMemory of an arena must do so.
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

  /// Begins the lifetime of a buffer. Until release(), current() returns it for its role and flat.
  void acquire(BufferId buffer);
  void release(BufferId buffer);

  /// The buffer with that role that is in use for the flat, or kNoBuffer.
  BufferId current(Role role, int32_t flat) const;
  /// Following accesses belong to this operation, until end_operation(). For AccessCheck.
  void begin_operation(OperationId operation) const;
  void end_operation() const;
  /// The current operation does not make its accesses.
  void skip_operation() const;

  /// The address on this rank of the buffer in use, for an access of the current operation. Null if none is in use. In
  /// the shared range: the part of this rank. In an offload store: see OffloadStore::base().
  std::byte* address(Role role, int32_t flat, AccessMode how) const;
  /// The same as a range for collectives of `group`.
  SymmetricRange range(Role role, int32_t flat, AccessMode how, GroupId group = GroupId::kShard) const;
  /// Declares an access of the current operation without returning the address.
  void declare_access(Role role, int32_t flat, AccessMode how) const;

  /// The address without AccessCheck, for initialization and other code outside of operations.
  std::byte* peek(BufferId buffer) const;
  std::byte* peek(Role role, int32_t flat) const { return peek(current(role, flat)); }
  /// The address between steps: of the stored copy if the role is offloaded.
  std::byte* address_between_steps(Role role, int32_t flat) const;

  /// The own shard of the working copy of the parameters.
  std::byte* own_shard(int32_t flat) const;
  /// The full parameters: the persistent copy, the slot of the gather, or the view. Null if the flat is not gathered.
  std::byte* full_parameters(int32_t flat) const;

 private:
  const PlannedBuffer& planned(BufferId buffer) const { return plan_.schedule.buffers[buffer]; }
  BufferId& current_slot(const PlannedBuffer& buffer);

  const Plan& plan_;
  const Arena& arena_;
  const OffloadStores& offload_stores_;
  int rank_;
  Ledger& ledger_;
  std::vector<std::vector<BufferId>> current_;  // by role, then owner; the last entry is for no owner
  std::vector<Ledger::EntryId> entries_;        // by buffer
  std::vector<std::string> owners_;             // by buffer: text for the ledger, made once
  std::unique_ptr<AccessCheck> check_;          // only in debug and sanitizer builds
};

}  // namespace aliquot
