#pragma once
// A fault that is staged on purpose, to see that a run ends as promised: what the variable ALIQUOT_FAULT asks for.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace aliquot {

enum class FaultKind : uint8_t {
  kKill,      // SIGKILL: the process is gone
  kStop,      // SIGSTOP: it is there, and never comes
  kThrow,     // a FaultError
  kSlow,      // it comes later
  kNan,       // a gradient that is not finite
  kFullDisk,  // every write fails
  kFlip,      // one bit of this rank's parameters is another
};

/// Once, on one rank, when it comes to an operation of a step.
struct InjectedFault {
  int rank = 0;
  int64_t step = 1;       // as steps count: from 1
  std::string operation;  // a FaultPoint, or "save"
  std::string unit = {};  // empty: the first that the operation is of
  FaultKind kind = FaultKind::kThrow;
  double seconds = 0;  // of kSlow
};

/// An operation that a fault can be for, beside "save".
struct FaultPoint {
  std::string_view name;
  std::optional<FaultKind> data_kind = {};  // the kind that only operations with this data can have
};

/// "rank=1,step=3,op=reduce,kind=kill", with unit=NAME if one is meant; rank is 0 and step is 1 where nothing is said.
/// Throws UsageError, one sentence, for anything else. `points` are the operations that it can be for, beside "save".
InjectedFault parse_injected_fault(std::string_view text, std::span<const FaultPoint> points);

/// What ALIQUOT_FAULT asks of this process, read at the first call; null where it is not set. Throws UsageError as
/// parse_injected_fault() does, at every call. Any thread.
const InjectedFault* injected_fault(std::span<const FaultPoint> points);
/// The same, null unless it is for that rank, step and operation. Does not check other operations.
const InjectedFault* injected_fault(int rank, int64_t step, std::string_view operation);

/// Does on the calling thread what kill, stop, throw and slow ask for, and nothing for the other kinds, which are of data.
/// `where` stands in the sentence that is thrown. Throws FaultError for throw.
void inject_fault(const InjectedFault& fault, std::string_view where);

}  // namespace aliquot
