#pragma once
// What has certainly finished when an operation starts, over all ranks and two steps.

#include <array>
#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot {

/// An operation of one of two steps that follow one another, in issue order: step (0 or 1) * operation count + operation.
using Moment = int32_t;
inline constexpr Moment kNever = -1;

/// Whether no rank of a replica can finish the operation before each of them has started it.
bool is_collective(const Plan& plan, const Operation& operation);
/// Or meets ranks of other replicas.
bool communicates(const Plan& plan, const Operation& operation);

/// Happens-before, closed over lanes, waits and collectives. One schedule serves all ranks, so two of them tell
/// everything: this one, and one that stands for every other. Every wait of the plan must be for what is issued before.
/// The host thread's own order is not counted on: what is proved here holds where compute is a stream too.
class HappensBefore {
 public:
  /// The last operation of each lane known to have ended: here, and on every other rank. A lane ends its work in order.
  struct Clock {
    std::array<Moment, kLaneCount> here, elsewhere;
    friend bool operator==(const Clock&, const Clock&) = default;
  };

  explicit HappensBefore(const Plan& plan);

  const Clock& at_start(Moment moment) const { return start_[moment]; }
  /// When all ranks have started a collective, which is before it touches a peer's memory; else as at_start().
  const Clock& at_all_arrived(Moment moment) const { return all_arrived_[moment]; }

  /// True for kNever.
  bool ended_here(Moment earlier, const Clock& clock) const {
    return earlier < 0 || earlier <= clock.here[lane(earlier)];
  }
  bool ended_elsewhere(Moment earlier, const Clock& clock) const {
    return earlier < 0 || earlier <= clock.elsewhere[lane(earlier)];
  }

  Moment moment(int step, OperationId operation) const { return step * count_ + operation; }
  OperationId operation(Moment moment) const { return moment % count_; }
  std::size_t lane(Moment moment) const { return static_cast<std::size_t>(lane_[operation(moment)]); }

  friend bool operator==(const HappensBefore&, const HappensBefore&) = default;

 private:
  Clock at_end(Moment moment) const;

  int32_t count_;
  std::vector<Lane> lane_;  // by operation
  std::vector<Clock> start_, all_arrived_;
};

}  // namespace aliquot
