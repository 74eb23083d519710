#pragma once
// The memory of this process as counted by the operating system.

#include <array>
#include <cstdint>
#include <string_view>

namespace aliquot {

/// The proportional set size (Pss) of this process, in which shared pages are divided among the processes that map
/// them. 0 if the system does not provide it. Walks the page tables, so do not call it in every step.
int64_t process_pss_bytes();

/// The phases of a run.
enum class RunPhase : uint8_t {
  kStart,
  kInitialValues,
  kLoading,
  kTraining,
  kEvaluating,
  kSaving,
  kComparingReplicas,
  kDigest
};
inline constexpr std::size_t kRunPhaseCount = 8;
/// The name in messages and metrics, for example "evaluating".
std::string_view name(RunPhase phase);

/// The peak resident memory of this process, and the phase of the run in which it occurred. Reads the kernel's
/// high-water mark, so it misses no peak between two samples. The share of this process in shared pages is measured at
/// the end of the phase.
class SystemPeak {
 public:
  /// `shares_pages`: whether other processes map pages of this one.
  explicit SystemPeak(bool shares_pages) : shares_pages_(shares_pages) { sample(); }

  /// Ends the current phase, begins `phase`, and returns the phase that ended.
  RunPhase enter(RunPhase phase);

  /// The peak since the process started.
  int64_t bytes();
  RunPhase phase() const { return peak_phase_; }
  /// The peak at construction.
  int64_t start_bytes() const { return start_bytes_; }

 private:
  void sample();

  bool shares_pages_;
  RunPhase now_ = RunPhase::kStart, peak_phase_ = RunPhase::kStart;
  int64_t highest_resident_bytes_ = 0;  // with shared pages counted in full
  int64_t peak_bytes_ = 0, start_bytes_ = -1;
};

}  // namespace aliquot
