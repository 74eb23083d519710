#pragma once
// The happens-before relation between operations, over all ranks and two consecutive steps.

#include <array>
#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot {

/// An operation in one of two consecutive steps: step (0 or 1) * operation count + operation.
using Moment = int32_t;
inline constexpr Moment kNever = -1;

/// Whether all ranks of the operation's group must start the operation before any of them can finish it.
bool is_collective(const Plan& plan, const Operation& operation);

/// The transitive happens-before relation from lanes, waits and collectives. All ranks run the same schedule, so it
/// suffices to model this rank ("here") and, for each group of the mesh, any other rank of the group ("elsewhere").
/// Every wait must refer to an operation that was issued earlier. The order of the issuing host thread is not used, so
/// the result also holds if compute is a CUDA stream.
class HappensBefore {
 public:
  using LaneMoments = std::array<Moment, kLaneCount>;
  /// For each lane, the last operation that has certainly ended on this rank (`here`), and on every other rank of a
  /// group (`elsewhere`, indexed by peer_index()). A lane ends its operations in order.
  struct Clock {
    LaneMoments here;
    std::array<LaneMoments, kPeerGroupCount> elsewhere;
    friend bool operator==(const Clock&, const Clock&) = default;
  };

  explicit HappensBefore(const Plan& plan);

  /// The operations that have ended when this rank starts the operation.
  const Clock& at_start(Moment moment) const { return start_[moment]; }
  /// The operations that have ended when all ranks have started a collective and none has accessed memory of peers yet.
  /// For operations that are not collectives, returns at_start().
  const Clock& at_all_arrived(Moment moment) const { return all_arrived_[moment]; }

  /// Whether `earlier` has ended on this rank, according to `clock`. True if `earlier` is kNever, which stands for no
  /// operation.
  bool ended_here(Moment earlier, const Clock& clock) const {
    return earlier < 0 || ended_here(lane(earlier), earlier, clock);
  }
  /// The same, if `earlier` is kNever or an operation of `lane`. Faster, because it does not look up the lane.
  static bool ended_here(std::size_t lane, Moment earlier, const Clock& clock) { return earlier <= clock.here[lane]; }
  /// Whether `earlier` has ended on all other ranks of `group`, according to `clock`. True if `earlier` is kNever,
  /// which stands for no operation.
  bool ended_elsewhere(GroupId group, Moment earlier, const Clock& clock) const {
    return earlier < 0 || ended_elsewhere(group, lane(earlier), earlier, clock);
  }
  /// The same, if `earlier` is kNever or an operation of `lane`. Faster, because it does not look up the lane.
  static bool ended_elsewhere(GroupId group, std::size_t lane, Moment earlier, const Clock& clock) {
    return earlier <= clock.elsewhere[peer_index(group)][lane];
  }

  Moment moment(int step, OperationId operation) const { return step * count_ + operation; }
  OperationId operation(Moment moment) const { return moment < count_ ? moment : moment - count_; }
  std::size_t lane(Moment moment) const { return static_cast<std::size_t>(lane_[operation(moment)]); }

  friend bool operator==(const HappensBefore&, const HappensBefore&) = default;

 private:
  /// Returns what has certainly ended when the operation ends. A final barrier proves only that all ranks have ended
  /// the collective's accesses to memory of peers. Another rank may still run work that follows the barrier. So use
  /// `elsewhere` of a replicate group only together with `here`, which never names an earlier operation than
  /// `elsewhere` does.
  Clock at_end(Moment moment) const;

  int32_t count_;
  std::vector<Lane> lane_;  // lane of each operation
  /// For each operation, the group whose ranks meet in its final barrier, or kRank if the operation has no final
  /// barrier.
  std::vector<GroupId> finishing_group_;
  std::vector<Clock> start_, all_arrived_;
};

}  // namespace aliquot
