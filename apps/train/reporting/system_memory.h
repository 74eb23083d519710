#pragma once
// The memory that the system counts for this process.

#include <array>
#include <cstdint>
#include <string_view>

namespace aliquot {

/// This process's share of the pages it has in memory (Pss), so that shared pages count once over all processes; 0 where
/// the system does not tell. Walks the page tables: not for every step.
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
/// "evaluating".
std::string_view name(RunPhase phase);

/// The most memory that the system counted for this process, and the phase of the run in which it was counted. The kernel keeps
/// the highest figure, so no peak between two readings is missed. Pages that processes share are divided among them as
/// they are at the end of the phase.
class SystemPeak {
 public:
  /// `shares_pages` says whether other processes map pages of this one.
  explicit SystemPeak(bool shares_pages) : shares_pages_(shares_pages) { sample(); }

  /// Ends the current phase, begins `phase`, and returns the phase that ended.
  RunPhase enter(RunPhase phase);

  /// Of the whole life until now.
  int64_t bytes();
  RunPhase phase() const { return peak_phase_; }
  /// When it was made.
  int64_t start_bytes() const { return start_bytes_; }

 private:
  void sample();

  bool shares_pages_;
  RunPhase now_ = RunPhase::kStart, peak_phase_ = RunPhase::kStart;
  int64_t highest_resident_bytes_ = 0;  // shared pages in full
  int64_t peak_bytes_ = 0, start_bytes_ = -1;
};

}  // namespace aliquot
