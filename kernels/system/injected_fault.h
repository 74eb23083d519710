#pragma once
// Fault injection: the environment variable ALIQUOT_FAULT makes one rank fail at one operation, to test failure
// handling.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace aliquot {

enum class FaultKind : uint8_t {
  kKill,      // SIGKILL ends the process
  kStop,      // SIGSTOP suspends the process
  kThrow,     // throws a FaultError
  kSlow,      // sleeps before the operation
  kNan,       // makes a gradient NaN
  kFullDisk,  // every write fails with ENOSPC
  kFlip,      // flips one bit of this rank's data
};

/// A fault that happens on one rank, at one operation of one step.
struct InjectedFault {
  int rank = 0;
  int64_t step = 1;       // index of the step, from 1
  std::string operation;  // the name of a FaultPoint, or "save"
  std::string unit = {};  // empty: the first unit with the operation
  /// For kFlip: "parameters", "master" or the name of an optimizer state; "gradients" after a backward; "sums" after a
  /// sum over ranks; "activations" after a forward. Empty: "gradients" after a backward, "sums" after a sum over ranks,
  /// otherwise "parameters".
  std::string of = {};
  bool is_permanent = false;  // for kFlip: also happens at all later operations that match, in steps and replays
  bool in_replay = false;     // happens in a replay instead of the step
  FaultKind kind = FaultKind::kThrow;
  double seconds = 0;  // the delay of kSlow
};

/// An operation at which a fault can happen.
struct FaultPoint {
  std::string_view name;
  std::vector<FaultKind> data_kinds = {};  // kNan and kFlip, if such faults can change data of this operation
};

/// Parses "rank=1,step=3,op=reduce,kind=kill", optionally with unit=NAME, of=NAME,
/// times=always and in=replay. The default is rank 0 in step 1.
/// `points` lists the possible operations; "save" is always possible. Throws UsageError for an invalid `text`.
InjectedFault parse_injected_fault(std::string_view text, std::span<const FaultPoint> points);

/// Returns the fault in ALIQUOT_FAULT, which the first call reads. Returns null if the variable is not set. Every call
/// with an invalid fault throws UsageError, like parse_injected_fault(). Thread-safe.
const InjectedFault* injected_fault(std::span<const FaultPoint> points);
/// Returns the fault in ALIQUOT_FAULT if it is for this rank, step and operation; null otherwise. Does not check that
/// the operation in the variable exists.
const InjectedFault* injected_fault(int rank, int64_t step, std::string_view operation);

/// Performs kKill, kStop, kSlow and kThrow on the calling thread. Does nothing for the other kinds, which change data.
/// kThrow throws FaultError with `where` in its message.
void inject_fault(const InjectedFault& fault, std::string_view where);

}  // namespace aliquot
