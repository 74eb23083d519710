#pragma once
// The addresses through which the model accesses buffers.

#include <memory>
#include <optional>
#include <vector>

#include "engine/run/memory/aliased_pages.h"
#include "engine/run/memory/pointer_slot.h"
#include "engine/run/memory/step_memory.h"

namespace aliquot {

/// Without the checking mode, returns the addresses of the buffers themselves. In the checking mode on hosts, returns
/// the addresses of second mappings, in which invalid accesses fault. Parameters are readable while a scope of their
/// unit is open. Gradients are accessible in the backward of their unit, and activations during their lifetimes. Used
/// from the rank's own thread. Everything passed must outlive it.
class ModelAddresses {
 public:
  /// `coordinate`: the tensor coordinate of this rank. `slots` is indexed by unit, then parameter.
  ModelAddresses(const Plan& plan, const StepMemory& memory, const Arena& arena, int coordinate,
                 const std::vector<std::vector<PointerSlots>>& slots);

  /// Return the addresses of the full parameters and gradients of a flat buffer, while they exist.
  std::byte* values(int32_t flat) const;
  std::byte* gradients(int32_t flat) const;
  /// The activation memory of the use whose scope is open. `verb`: the verb of the model code in the scope.
  UseMemory memory_of_use(int32_t use, Verb verb) const;

  /// Called before and after the model code of an operation. They enqueue changes of the protection of the buffers that
  /// the model code may access.
  void open(Stream& compute, OperationId operation);
  void close(Stream& compute, OperationId operation);

 private:
  using Protection = AliasedPages::Protection;
  struct Change {
    AliasedPages* pages;
    Protection to;
  };

  TensorRanges names(const PlannedBuffer& buffer, int coordinate) const;
  SliceReach slices(const PlannedBuffer& buffer, int coordinate,
                    const std::vector<std::vector<PointerSlots>>& slots) const;
  Role values_role() const;
  std::byte* at(Role role, int32_t whose, AccessMode how) const;
  /// Like at() without AccessCheck, for a buffer that the operation does not declare.
  std::byte* peek(Role role, int32_t whose) const;
  void change(std::vector<Change>& changes, Role role, int32_t whose, Protection to) const;
  static void apply_changes(Stream& compute, std::vector<Change> changes);
  static bool explain(const void* owner, const void* address, FaultLine& line) noexcept;

  const Plan& plan_;
  const StepMemory& memory_;
  bool protects_;
  std::vector<std::shared_ptr<AliasedPages>>
      aliases_;  // indexed by buffer; buffers with the same role, owner and offset share an alias
  std::optional<FaultExplainer> source_;  // explains faults in all aliases
};

}  // namespace aliquot
