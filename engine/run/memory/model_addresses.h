#pragma once
// Where the model sees the buffers that it uses.

#include <memory>
#include <optional>
#include <vector>

#include "engine/run/memory/aliased_pages.h"
#include "engine/run/memory/step_memory.h"

namespace aliquot {

/// In place; where the policy checks, on a host, at addresses of their own: parameters can only be read there, and only while a
/// scope of their unit is open; gradients only in its backward; activations from the first use that has them to the
/// last. Anything else faults (install_fault_names() says what it was). Used from the rank's own thread; all it is
/// given must outlive it.
class ModelAddresses {
 public:
  ModelAddresses(const Plan& plan, const StepMemory& memory, const Arena& arena);

  /// Whole, while the flat is.
  std::byte* values(int32_t flat) const;
  std::byte* gradients(int32_t flat) const;
  /// Of the use that is at work now.
  UseMemory memory_of_use(int32_t use, bool backward) const;

  /// Around the model's code of an operation, on the lane where it runs: what it may touch can be touched.
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
  /// The same for a buffer that the operation does not declare: no access check.
  std::byte* peek(Role role, int32_t whose) const;
  void change(std::vector<Change>& changes, Role role, int32_t whose, Protection to) const;
  static void apply_changes(Stream& compute, std::vector<Change> changes);
  static bool explain(const void* owner, const void* address, FaultLine& line) noexcept;

  const Plan& plan_;
  const StepMemory& memory_;
  bool protects_;
  std::vector<std::shared_ptr<AliasedPages>> aliases_;  // by buffer; buffers of one owner at one place share theirs
  std::optional<FaultExplainer> source_;                // of all of them
};

}  // namespace aliquot
