#include <fmt/format.h>

#include "engine/plan/buffers_in_use.h"
#include "engine/plan/byte_holders.h"
#include "engine/proof/validate_parts.h"

namespace aliquot {
namespace {

/// The last accesses to a buffer. A lane ends its operations in order, so one moment per lane is sufficient.
struct LastAccesses {
  LastAccesses() {
    here.fill(kNever);
    for (auto& reads : elsewhere) reads.fill(kNever);
  }
  Moment taken = kNever;            // when the lifetime of the buffer began
  Moment write = kNever;            // the last write; earlier writes ended before it, or their race was reported
  HappensBefore::LaneMoments here;  // reads by this rank since the last write
  /// Reads by other ranks since the last write, for each peer group.
  std::array<HappensBefore::LaneMoments, kPeerGroupCount> elsewhere;
};

/// Traverses the schedule twice in issue order. The first traversal records the accesses of a previous step, and the
/// second one checks a step after it.
class RaceChecker {
 public:
  explicit RaceChecker(const Proof& proof)
      : proof_(proof),
        schedule_(proof.plan.schedule),
        mesh_(proof.plan.mesh()),
        last_accesses_(schedule_.buffers.size()),
        accessed_by_(schedule_.buffers.size(), 0),
        begins_(schedule_.operations.size()),
        ends_(schedule_.operations.size()),
        in_use_(proof.plan) {
    for (BufferId b = 0; b < static_cast<BufferId>(schedule_.buffers.size()); ++b) {
      const PlannedBuffer& buffer = schedule_.buffers[b];
      if (!buffer.always) {
        begins_[buffer.first].push_back(b);
        ends_[buffer.last].push_back(b);
        continue;
      }
      in_use_.at(buffer) = b;
      if (buffer.space != Space::kSharedRange && buffer.size_bytes > 0) assign_bytes(b, [](BufferId) {});
    }
  }

  void walk() {
    const auto count = static_cast<OperationId>(schedule_.operations.size());
    for (const int step : {0, 1}) {
      reporting_ = step == 1;
      for (OperationId id = 0; id < count; ++id) visit(proof_.order.moment(step, id), id);
    }
    check_groups(proof_, accessed_by_);
  }

 private:
  template <typename Visit>
  void assign_bytes(BufferId b, Visit visit) {
    const PlannedBuffer& buffer = schedule_.buffers[b];
    holders_[static_cast<std::size_t>(buffer.space)].assign(buffer.offset_bytes,
                                                            buffer.offset_bytes + buffer.size_bytes, b, visit);
  }

  void visit(Moment now, OperationId id) {
    for (const BufferId b : begins_[id]) begin(b, now);
    for (const Access& access : proof_.accesses.of(id)) touch(access, now);
    for (const BufferId b : ends_[id]) {
      BufferId& now_in_use = in_use_.at(schedule_.buffers[b]);
      if (now_in_use == b) now_in_use = kNoBuffer;  // otherwise the buffer of the next micro-batch is in use already
    }
  }

  /// Begins the lifetime of a buffer. Checks that all accesses to earlier buffers at the same bytes have ended.
  void begin(BufferId b, Moment now) {
    const PlannedBuffer& buffer = schedule_.buffers[b];
    in_use_.at(buffer) = b;
    if (buffer.size_bytes > 0) {
      assign_bytes(b, [&](BufferId earlier) {
        if (alive(earlier, now)) report_overlap(earlier, b, now);
        check_write(earlier, now, proof_.order.at_start(now));
      });
    }
    last_accesses_[b] = {};
    last_accesses_[b].taken = now;
  }

  bool alive(BufferId b, Moment now) const {
    const PlannedBuffer& buffer = schedule_.buffers[b];
    const Moment taken = last_accesses_[b].taken;
    return buffer.always || now - taken <= buffer.last - buffer.first;
  }

  void touch(const Access& access, Moment now) {
    const BufferId b = in_use_.find(access.role, access.flat, access.micro_batch);
    if (b == kNoBuffer) return report_no_buffer(access, now);
    const int32_t micro_batch = schedule_.buffers[b].micro_batch;
    if (micro_batch >= 0 && micro_batch != access.micro_batch) return report_no_buffer(access, now);
    const Operation& operation = schedule_.operations[proof_.order.operation(now)];
    const GroupId ranks = is_transfer(operation.verb) ? operation.group : access.readers;
    accessed_by_[b] |= group_set(mesh_.size(ranks) > 1 ? ranks : GroupId::kRank);
    if (schedule_.buffers[b].size_bytes == 0) return;
    const HappensBefore::Clock& all_arrived = proof_.order.at_all_arrived(now);
    const HappensBefore::Clock& clock = access.after_all_arrived ? all_arrived : proof_.order.at_start(now);
    LastAccesses& last = last_accesses_[b];
    const std::size_t lane = proof_.order.lane(now);
    if (access.writes) {
      check_write(b, now, clock);
      check_after_life_began(b, now, clock);
      clear_ended(last, lane, now);
      last.write = now;
    } else {
      check_read(b, now, clock);
      last.here[lane] = now;
    }
    if (!is_peer_group(access.readers) || mesh_.size(access.readers) == 1) return;
    check_other_ranks_read(b, access.readers, now, all_arrived);
    last.elsewhere[peer_index(access.readers)][lane] = now;
  }

  /// Called at a write. Forgets earlier accesses, because they have ended. Keeps reads by other ranks in the same
  /// operation.
  static void clear_ended(LastAccesses& last, std::size_t lane, Moment now) {
    LastAccesses meanwhile;
    meanwhile.taken = last.taken;
    for (std::size_t group = 0; group < kPeerGroupCount; ++group) {
      if (last.elsewhere[group][lane] == now) meanwhile.elsewhere[group][lane] = now;
    }
    last = meanwhile;
  }

  void check_write(BufferId b, Moment now, const HappensBefore::Clock& clock) {
    const LastAccesses& last = last_accesses_[b];
    if (last.write != now && !proof_.order.ended_here(last.write, clock)) {
      report_race(b, last.write, now, "still be writing");
    }
    for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
      const Moment own = last.here[lane];
      if (own != now && !HappensBefore::ended_here(lane, own, clock)) report_race(b, own, now, "still be reading");
      for (const GroupId group : kPeerGroups) {
        const Moment peers = last.elsewhere[peer_index(group)][lane];
        if (peers != now && !HappensBefore::ended_elsewhere(group, lane, peers, clock))
          report_race(b, peers, now, "still be reading on another rank");
      }
    }
  }

  void check_after_life_began(BufferId b, Moment now, const HappensBefore::Clock& clock) {
    const Moment taken = last_accesses_[b].taken;
    if (taken != now && !proof_.order.ended_here(taken, clock))
      report_race(b, taken, now, "not have started to use yet");
  }

  void check_read(BufferId b, Moment now, const HappensBefore::Clock& clock) {
    const LastAccesses& last = last_accesses_[b];
    if (last.write == kNever && !schedule_.buffers[b].always) return report_unwritten(b, now);
    if (last.write != now && !proof_.order.ended_here(last.write, clock)) {
      report_race(b, last.write, now, "still be writing");
    }
  }

  /// Checks that writes to this rank's buffer end before another rank of `group` reads it in the same operation.
  void check_other_ranks_read(BufferId b, GroupId group, Moment now, const HappensBefore::Clock& clock) {
    const Moment write = last_accesses_[b].write;
    if (write != now && !proof_.order.ended_elsewhere(group, write, clock)) {
      report_race(b, write, now, "still be writing on another rank");
    }
  }

  void report_race(BufferId b, Moment earlier, Moment now, std::string_view may) {
    if (!reporting_) return;
    const OperationId first = proof_.order.operation(earlier), second = proof_.order.operation(now);
    const bool before = earlier < proof_.order.moment(1, 0);
    proof_.defects.add(DefectKind::kRace, {first, second},
                       fmt::format("{} accesses the {}, which {}{} may {}", proof_.defects.describe(second),
                                   proof_.defects.describe(schedule_.buffers[b]), proof_.defects.describe(first),
                                   before ? " of the previous step" : "", may));
  }

  /// Reports overlaps only in the first traversal. There, a buffer that overlaps a persistent one takes over its bytes,
  /// so the second traversal would not find the overlap again.
  void report_overlap(BufferId a, BufferId b, Moment now) {
    if (reporting_) return;
    const OperationId id = proof_.order.operation(now);
    proof_.defects.add(DefectKind::kPlace, {id},
                       fmt::format("{} starts to use the {}, whose bytes overlap the {} that are still in use",
                                   proof_.defects.describe(id), proof_.defects.describe(schedule_.buffers[b]),
                                   proof_.defects.describe(schedule_.buffers[a])));
  }

  void report_no_buffer(const Access& access, Moment now) {
    if (!reporting_) return;
    const OperationId id = proof_.order.operation(now);
    const PlannedBuffer buffer{.role = access.role, .category = {}, .flat = access.flat};
    proof_.defects.add(DefectKind::kPlace, {id},
                       fmt::format("{} accesses the {} outside of their lifetime", proof_.defects.describe(id),
                                   proof_.defects.describe(buffer)));
  }

  void report_unwritten(BufferId b, Moment now) {
    if (!reporting_) return;
    const OperationId id = proof_.order.operation(now);
    proof_.defects.add(DefectKind::kPlace, {id},
                       fmt::format("{} reads the {} before they are written", proof_.defects.describe(id),
                                   proof_.defects.describe(schedule_.buffers[b])));
  }

  const Proof& proof_;
  const Schedule& schedule_;
  Mesh mesh_;
  bool reporting_ = false;
  std::array<ByteHolders, kSpaceCount> holders_;
  std::vector<LastAccesses> last_accesses_;
  std::vector<GroupSet> accessed_by_;                 // groups of the accesses to each buffer
  std::vector<std::vector<BufferId>> begins_, ends_;  // buffers that begin or end with each operation
  BuffersInUse in_use_;
};

}  // namespace

void check_races(const Proof& proof) { RaceChecker(proof).walk(); }

}  // namespace aliquot
