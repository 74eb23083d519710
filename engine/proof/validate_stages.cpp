// The proof that pipeline stages fit together: they divide the model, transfer the same data, and cannot deadlock.
#include <algorithm>
#include <deque>
#include <fmt/format.h>
#include <map>
#include <tuple>

#include "engine/plan/sizes.h"
#include "engine/proof/validate_parts.h"

namespace aliquot {
namespace {

/// The counterpart of each transfer, at [stage][operation].
using Pairs = std::vector<std::vector<StageOperation>>;

const Operation& operation_of(const std::vector<Plan>& stages, const StageOperation& at) {
  return stages[static_cast<std::size_t>(at.stage)].schedule.operations[at.operation];
}

/// Pairs the n-th send of each boundary and direction with the n-th receive, as communicators do. Both must be of the
/// same use and micro-batch, on the same lane.
Pairs pair_transfers(const std::vector<Plan>& stages, StageDefects& defects) {
  Pairs pairs(stages.size());
  std::map<std::tuple<int32_t, bool, bool>, std::vector<StageOperation>> sides;  // key: boundary, is forward, is send
  for (int32_t s = 0; s < static_cast<int32_t>(stages.size()); ++s) {
    const auto& operations = stages[static_cast<std::size_t>(s)].schedule.operations;
    pairs[static_cast<std::size_t>(s)].assign(operations.size(), {-1, -1});
    for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
      const Operation& operation = operations[id];
      if (!is_transfer(operation.verb)) continue;
      const auto count = static_cast<int32_t>(stages.size());
      const int32_t boundary = operation.group == GroupId::kNextStage ? s : (s + count - 1) % count;
      sides[{boundary, transfers_activations(operation.verb), is_send(operation.verb)}].push_back({s, id});
    }
  }
  for (const auto& [key, own] : sides) {
    const auto& [boundary, forward, sends] = key;
    const auto& others = sides[{boundary, forward, !sends}];
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (i >= others.size()) {
        defects.add(DefectKind::kTransfer, {own[i]},
                    fmt::format("{} has no counterpart on the neighboring pipeline stage", defects.describe(own[i])));
        continue;
      }
      const Operation &a = operation_of(stages, own[i]), &b = operation_of(stages, others[i]);
      if (a.operand != b.operand || a.micro_batch != b.micro_batch || a.lane != b.lane)
        defects.add(DefectKind::kTransfer, {own[i], others[i]},
                    fmt::format("{} is paired with {}, which has another operand, micro-batch or lane",
                                defects.describe(own[i]), defects.describe(others[i])));
      pairs[static_cast<std::size_t>(own[i].stage)][static_cast<std::size_t>(own[i].operation)] = others[i];
    }
  }
  return pairs;
}

/// The buffers that a transfer may access, keyed by owner (the use of an output, or -1 for gradients) and micro-batch.
/// At most one buffer of each key may exist at a time.
using SentBuffers = std::map<std::pair<int32_t, int32_t>, std::vector<const PlannedBuffer*>>;

SentBuffers sent_buffers(const Plan& plan, StageDefects& defects) {
  SentBuffers buffers;
  for (const PlannedBuffer& buffer : plan.schedule.buffers) {
    if (buffer.role != Role::kOutputActivations && buffer.role != Role::kActivationGradients) continue;
    auto& others = buffers[std::pair(buffer.flat, buffer.micro_batch)];
    const auto overlaps = [&](const PlannedBuffer* other) {
      return buffer.first <= other->last && other->first <= buffer.last;
    };
    if (std::ranges::any_of(others, overlaps))
      defects.add(DefectKind::kTransfer, {},
                  fmt::format("pipeline stage {} has two buffers of role {} for micro-batch {} at the same time",
                              plan.stage.index, name(buffer.role), buffer.micro_batch));
    others.push_back(&buffer);
  }
  return buffers;
}

/// Returns the offset of the buffer that a transfer accesses on its own stage, or -1 if the buffer does not exist at
/// that time.
int64_t own_offset(const Plan& plan, const SentBuffers& buffers, OperationId id) {
  const Operation& operation = plan.schedule.operations[id];
  const int32_t owner = transfers_activations(operation.verb) ? operation.operand : -1;
  const auto found = buffers.find({owner, operation.micro_batch});
  if (found == buffers.end()) return -1;
  for (const PlannedBuffer* buffer : found->second) {
    if (buffer->first <= id && id <= buffer->last) return buffer->offset_bytes;
  }
  return -1;
}

/// Checks that each stage knows the offset at which the other stage reads or writes.
void check_offsets(const std::vector<Plan>& stages, const Pairs& pairs, StageDefects& defects) {
  std::vector<SentBuffers> buffers;
  for (const Plan& stage : stages) buffers.push_back(sent_buffers(stage, defects));
  for (int32_t s = 0; s < static_cast<int32_t>(stages.size()); ++s) {
    const auto& operations = stages[static_cast<std::size_t>(s)].schedule.operations;
    for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
      const StageOperation other = pairs[static_cast<std::size_t>(s)][static_cast<std::size_t>(id)];
      if (other.stage < 0) continue;
      const int64_t offset = own_offset(stages[static_cast<std::size_t>(other.stage)],
                                        buffers[static_cast<std::size_t>(other.stage)], other.operation);
      if (offset >= 0 && operations[id].peer_offset_bytes == offset) continue;
      defects.add(
          DefectKind::kTransfer, {{s, id}, other},
          fmt::format("{} uses offset {} on the neighboring pipeline stage, but the buffer of {} is at offset {}",
                      defects.describe({s, id}), operations[id].peer_offset_bytes, defects.describe(other), offset));
    }
  }
}

/// Models two steps of all stages as a graph of operations, and stops at a deadlock. An operation can end if the
/// operations before it in its queue and those that it waits for have ended. A transfer also needs its counterpart to
/// be ready. No stage continues after the norm before all stages have reached it.
class Execution {
 public:
  /// `one_queue`: all transfers of a rank run in one queue.
  Execution(const std::vector<Plan>& stages, const Pairs& pairs, bool one_queue)
      : stages_(stages), pairs_(pairs), one_queue_(one_queue) {
    for (const Plan& stage : stages) {
      counts_.push_back(static_cast<int32_t>(stage.schedule.operations.size()));
      first_.push_back(total_);
      total_ += counts_.back() * kSteps;
    }
    operations_end_ = total_;
    total_ += kSteps;  // for each step, a graph node that ends when all pipeline stages have reached the norm
    waits_left_.assign(static_cast<std::size_t>(total_), 0);
    followers_.resize(static_cast<std::size_t>(total_));
    arrived_.assign(static_cast<std::size_t>(total_), false);
    for (int32_t s = 0; s < static_cast<int32_t>(stages.size()); ++s) add_edges(s);
  }

  void run() {
    std::deque<int32_t> ready;
    for (int32_t node = 0; node < total_; ++node) {
      if (waits_left_[static_cast<std::size_t>(node)] == 0) ready.push_back(node);
    }
    while (!ready.empty()) {
      const int32_t node = ready.front();
      ready.pop_front();
      arrived_[static_cast<std::size_t>(node)] = true;
      const int32_t other = other_side(node);
      if (other >= 0 && !arrived_[static_cast<std::size_t>(other)]) continue;
      for (const int32_t ended : {node, other}) {
        if (ended < 0) continue;
        ++ended_count_;
        for (const int32_t next : followers_[static_cast<std::size_t>(ended)]) {
          if (--waits_left_[static_cast<std::size_t>(next)] == 0) ready.push_back(next);
        }
      }
    }
  }

  bool complete() const { return ended_count_ == total_; }
  /// The transfers that have started and wait for their counterpart.
  std::vector<StageOperation> stuck() const {
    std::vector<StageOperation> stuck;
    for (int32_t node = 0; node < operations_end_; ++node) {
      const int32_t other = other_side(node);
      if (arrived_[static_cast<std::size_t>(node)] && other >= 0 && !arrived_[static_cast<std::size_t>(other)])
        stuck.push_back(at(node));
    }
    return stuck;
  }

 private:
  static constexpr int32_t kSteps = 2;

  int32_t node(int32_t stage, int32_t step, OperationId id) const {
    return first_[static_cast<std::size_t>(stage)] + step * counts_[static_cast<std::size_t>(stage)] + id;
  }
  StageOperation at(int32_t node) const {
    const auto stage = static_cast<int32_t>(std::ranges::upper_bound(first_, node) - first_.begin()) - 1;
    return {stage, (node - first_[static_cast<std::size_t>(stage)]) % counts_[static_cast<std::size_t>(stage)]};
  }
  int32_t other_side(int32_t node) const {
    if (node >= operations_end_) return -1;
    const auto [stage, id] = at(node);
    const StageOperation other = pairs_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(id)];
    if (other.stage < 0) return -1;
    const int32_t step = (node - first_[static_cast<std::size_t>(stage)]) / counts_[static_cast<std::size_t>(stage)];
    return this->node(other.stage, step, other.operation);
  }
  void add_edge(int32_t from, int32_t to) {
    followers_[static_cast<std::size_t>(from)].push_back(to);
    ++waits_left_[static_cast<std::size_t>(to)];
  }
  void add_edges(int32_t stage) {
    const auto& operations = stages_[static_cast<std::size_t>(stage)].schedule.operations;
    constexpr int32_t kNone = -1;
    std::array<int32_t, kLaneCount> last;
    last.fill(kNone);
    int32_t last_model_code = kNone;
    for (int32_t step = 0; step < kSteps; ++step) {
      for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
        const Operation& operation = operations[id];
        const int32_t now = node(stage, step, id);
        const bool queued = one_queue_ && is_transfer(operation.verb);
        int32_t& before = last[static_cast<std::size_t>(queued ? Lane::kForward0 : operation.lane)];
        if (before != kNone) add_edge(before, now);
        before = now;
        // On hosts, model code and the norm run on the thread that issues all operations, so later operations wait for
        // them.
        if (last_model_code != kNone) add_edge(last_model_code, now);
        if (operation.lane == Lane::kCompute) last_model_code = now;
        if (operation.verb == Verb::kNorm) {
          last_model_code = operations_end_ + step;
          add_edge(now, last_model_code);
        }
        for (const Wait& wait : operation.after) {
          const int32_t of = step - (wait.of_previous_step ? 1 : 0);
          if (of >= 0) add_edge(node(stage, of, wait.operation), now);
        }
      }
    }
  }

  const std::vector<Plan>& stages_;
  const Pairs& pairs_;
  bool one_queue_;
  int32_t total_ = 0, operations_end_ = 0, ended_count_ = 0;
  /// For each stage: the number of operations in a step, and the index of the first graph node.
  std::vector<int32_t> counts_, first_;
  std::vector<int32_t> waits_left_;  // for each graph node, the number of its predecessors that have not ended
  std::vector<std::vector<int32_t>> followers_;
  /// For each graph node, whether its predecessors have ended, so that a transfer has started.
  std::vector<bool> arrived_;
};

void check_deadlock(const std::vector<Plan>& stages, const Pairs& pairs, bool one_queue, StageDefects& defects) {
  Execution execution(stages, pairs, one_queue);
  execution.run();
  if (execution.complete()) return;
  const std::vector<StageOperation> stuck = execution.stuck();
  std::string waiting;
  for (std::size_t i = 0; i < std::min<std::size_t>(stuck.size(), 2); ++i)
    waiting += fmt::format("{}{}", i == 0 ? "" : " and ", defects.describe(stuck[i]));
  defects.add(DefectKind::kTransfer, stuck,
              fmt::format("deadlock{}: no counterpart ever starts for {}",
                          one_queue ? " if a rank runs all transfers in one queue" : "", waiting));
}

}  // namespace

std::vector<Defect> validate_stages(const std::vector<Plan>& stages) {
  StageDefects defects(stages);
  check_cut(stages, defects);
  if (defects.empty()) check_work(stages, defects);
  if (!defects.empty()) return defects.take();
  const Pairs pairs = pair_transfers(stages, defects);
  if (!defects.empty()) return defects.take();
  check_offsets(stages, pairs, defects);
  for (const bool one_queue : {false, true}) check_deadlock(stages, pairs, one_queue, defects);
  return defects.take();
}

}  // namespace aliquot
