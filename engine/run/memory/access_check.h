#pragma once
// Whether operations touch what Accesses declares.

#include <vector>

#include "engine/plan/accesses.h"

namespace aliquot {

/// What an operation does with a buffer, as the bits of both. An operation that writes may read what it wrote.
enum class AccessMode : uint8_t { kReads = 1, kWrites = 2, kReadsAndWrites = 3 };

/// Compares the touches of each operation with Accesses::of: it touches every buffer declared, in the declared way, and no
/// other. Violations throw std::logic_error, naming operation and buffer. Debug and sanitizer builds have one in every
/// StepMemory. Allocates nothing after the first step. Used from the rank's own thread; the plan must outlive it.
class AccessCheck {
 public:
  explicit AccessCheck(const Plan& plan) : plan_(plan), accesses_(plan) {}

  /// Operations do not overlap: each begin() has its end().
  void begin(OperationId operation);
  void declare_access(Role role, int32_t flat, AccessMode how);
  /// The operation that has begun may leave out what it declares.
  void skip() { skipped_ = true; }
  void end();

 private:
  struct DeclaredAccess {
    Role role;
    int32_t flat;
    uint8_t declared, touched;
  };
  DeclaredAccess& entry(Role role, int32_t flat);
  [[noreturn]] void fail(const DeclaredAccess& what, uint8_t kinds, std::string_view defect) const;

  const Plan& plan_;
  Accesses accesses_;
  OperationId operation_ = -1;
  bool skipped_ = false;
  std::vector<DeclaredAccess> entries_;  // of the operation that has begun
};

}  // namespace aliquot
