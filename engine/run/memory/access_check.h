#pragma once
// A check that operations make exactly the accesses that Accesses declares.

#include <vector>

#include "engine/plan/accesses.h"

namespace aliquot {

/// How an operation accesses a buffer, as bits. An operation that writes may also read what it wrote.
enum class AccessMode : uint8_t { kReads = 1, kWrites = 2, kReadsAndWrites = 3 };

/// Checks that each operation accesses exactly the buffers that Accesses::of() lists, in the declared mode. A violation
/// throws std::logic_error, which names the operation and the buffer. StepMemory uses it only in debug and sanitizer
/// builds. Allocates nothing after the first step. Used from the rank's own thread. The plan must outlive it.
class AccessCheck {
 public:
  explicit AccessCheck(const Plan& plan) : plan_(plan), accesses_(plan) {}

  /// Calls of begin() and end() must alternate.
  void begin(OperationId operation);
  void declare_access(Role role, int32_t flat, AccessMode how);
  /// Allows the current operation to omit declared accesses.
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
  std::vector<DeclaredAccess> entries_;  // declared accesses of the current operation
};

}  // namespace aliquot
