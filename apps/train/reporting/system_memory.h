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
/// A number of bytes for each phase, by the value of RunPhase.
using BytesByPhase = std::array<int64_t, kRunPhaseCount>;
/// The name in messages and metrics, for example "evaluating".
std::string_view name(RunPhase phase);

/// Finds the peak resident memory of this process, and the phase of the run in which the peak occurred. Reads the
/// kernel's high-water mark, so it misses no peak between two samples. Of pages that processes share, only the share of
/// this process counts. This share is measured at the end of a phase.
class SystemPeak {
 public:
  /// `shares_pages` states whether other processes map memory of this process too.
  explicit SystemPeak(bool shares_pages) : shares_pages_(shares_pages) { sample(); }

  /// Ends the current phase, begins `phase`, and returns the phase that ended.
  RunPhase enter(RunPhase phase);

  /// Returns the peak memory of this process since the process started, in bytes.
  int64_t bytes();
  RunPhase phase() const { return peak_phase_; }
  /// Returns the peak memory of each phase in which the process exceeded the peak of all earlier phases. 0 for all
  /// other phases: the kernel has one high-water mark, so their peaks are unknown.
  const BytesByPhase& bytes_by_phase() const { return by_phase_; }
  /// Returns the peak memory of this process up to the construction of this object, in bytes.
  int64_t start_bytes() const { return start_bytes_; }

 private:
  void sample();

  bool shares_pages_;
  RunPhase now_ = RunPhase::kStart, peak_phase_ = RunPhase::kStart;
  int64_t highest_resident_bytes_ = 0;  // the high-water mark, in which shared pages count in full
  int64_t peak_bytes_ = 0, start_bytes_ = -1;
  BytesByPhase by_phase_{};
};

}  // namespace aliquot
