#pragma once
// The addresses at which the model sees buffers.

#include <memory>
#include <optional>
#include <vector>

#include "engine/run/memory/aliased_pages.h"
#include "engine/run/memory/step_memory.h"

namespace aliquot {

/// Without the checking mode, the addresses of the buffers themselves. In the checking mode on hosts, the addresses of
/// second mappings, at which other accesses fault: parameters are readable while a scope of their unit is open,
/// gradients are accessible in its backward, and activations from their first use to their last. Used from the rank's
/// own thread. Everything passed must outlive it.
class ModelAddresses {
 public:
  ModelAddresses(const Plan& plan, const StepMemory& memory, const Arena& arena);

  /// The full parameters and gradients of a flat, while they exist.
  std::byte* values(int32_t flat) const;
  std::byte* gradients(int32_t flat) const;
  /// The activation memory of the use whose scope is open.
  UseMemory memory_of_use(int32_t use, bool backward) const;

  /// Enqueued before and after the model code of an operation: change the protection of the buffers that it may access.
  void open(Stream& compute, OperationId operation);
  void close(Stream& compute, OperationId operation);

 private:
  using Protection = AliasedPages::Protection;
  struct Change {
    AliasedPages* pages;
    Protection to;
  };

  TensorRanges names(const PlannedBuffer& buffer) const;
  Role values_role() const;
  std::byte* at(Role role, int32_t whose, AccessMode how) const;
  /// The same without AccessCheck, for a buffer that the operation does not declare.
  std::byte* peek(Role role, int32_t whose) const;
  void change(std::vector<Change>& changes, Role role, int32_t whose, Protection to) const;
  static void apply_changes(Stream& compute, std::vector<Change> changes);
  static bool explain(const void* owner, const void* address, FaultLine& line) noexcept;

  const Plan& plan_;
  const StepMemory& memory_;
  bool protects_;
  std::vector<std::shared_ptr<AliasedPages>>
      aliases_;                           // by buffer; buffers with the same role, owner and offset share one
  std::optional<FaultExplainer> source_;  // for all aliases
};

}  // namespace aliquot
