#include "tests/engine/plan/brute_force.h"

#include <fmt/format.h>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace aliquot::testing {
namespace {

constexpr int kSteps = 3;
constexpr int64_t kSpace = int64_t{1} << 40, kPointers = int64_t{1} << 50, kDecision = int64_t{1} << 51;

using Stages = std::vector<const Plan*>;

/// The mesh of the plan. If no use declares a collective and no gradients are added over tensor groups, no operation
/// accesses memory of ranks with another tensor coordinate, so the mesh has only the ranks with tensor coordinate 0.
Mesh simulated_mesh(const Plan& plan) {
  Mesh mesh = plan.mesh();
  const auto communicates = [](const UseActivations& use) { return !use.collectives.empty(); };
  const auto is_added = [](const FlatSpec& flat) { return flat.trainable && flat.gradients == TensorGradients::kSum; };
  if (std::ranges::none_of(plan.model.activations.uses, communicates) && std::ranges::none_of(plan.flats, is_added))
    mesh.tensor = 1;
  return mesh;
}

/// Events of an operation on a rank: its start, the start on all ranks of its group (for collectives only), the end of
/// its accesses, and its end. With a final barrier, the end comes after the accesses of all ranks of the group.
enum Event { kStart, kAllStarted, kDone, kEnd };
constexpr int kEventCount = 4;

/// All events of all pipeline stages in a topological order. For each event, stores the set of events that happen
/// before it. Every pipeline stage issues its operations in order, and a send or receive is issued at the same time as
/// its counterpart. If a pipeline stage waits forever for a counterpart, deadlock() describes the deadlock, and the
/// graph is not complete.
class Graph {
 public:
  explicit Graph(const Stages& stages) : stages_(stages), mesh_(simulated_mesh(*stages.front())) {
    ranks_ = mesh_.rank_count() / mesh_.pipeline;
    int events = 0;
    for (const Plan* stage : stages) {
      first_.push_back(events);
      counts_.push_back(static_cast<int>(stage->schedule.operations.size()));
      events += kSteps * counts_.back() * kEventCount * ranks_;
    }
    words_ = (static_cast<std::size_t>(events) + 63) / 64;
    before_.assign(static_cast<std::size_t>(events) * words_, 0);
    pair_transfers();
    std::vector<Cursor> cursors(stages.size(), Cursor{0, 0, std::vector<int>(lane_count(), -1)});
    for (bool progressed = true; progressed;) {
      progressed = false;
      for (int s = 0; s < static_cast<int>(stages.size()); ++s) {
        while (advance(s, cursors)) progressed = true;
      }
    }
    for (int s = 0; s < static_cast<int>(stages.size()); ++s) {
      const Cursor& at = cursors[static_cast<std::size_t>(s)];
      if (at.step < kSteps && deadlock_.empty())
        deadlock_ = fmt::format("operation {} of step {} of stage {} never meets its counterpart", at.op, at.step, s);
    }
  }

  int at(int stage, int step, int op, Event event, int rank) const {
    const auto s = static_cast<std::size_t>(stage);
    return first_[s] + ((step * counts_[s] + op) * kEventCount + event) * ranks_ + rank;
  }
  bool before(int a, int b) const {
    return (before_[static_cast<std::size_t>(b) * words_ + static_cast<std::size_t>(a) / 64] >> (a % 64)) & 1;
  }
  const std::string& deadlock() const { return deadlock_; }

 private:
  struct Cursor {
    int step, op;
    std::vector<int> lane_end;  // the last event of each lane of each rank
  };
  struct Side {
    int stage = -1, op = -1;
  };

  std::size_t lane_count() const { return static_cast<std::size_t>(ranks_) * kLaneCount; }
  const Operation& operation(int stage, int op) const {
    return stages_[static_cast<std::size_t>(stage)]->schedule.operations[static_cast<std::size_t>(op)];
  }

  /// Pairs transfers between two neighboring pipeline stages: the n-th send in a direction with the n-th receive.
  void pair_transfers() {
    std::map<std::tuple<int, bool, bool>, std::vector<Side>> sides;
    for (int s = 0; s < static_cast<int>(stages_.size()); ++s) {
      others_.emplace_back(static_cast<std::size_t>(counts_[static_cast<std::size_t>(s)]));
      for (int op = 0; op < counts_[static_cast<std::size_t>(s)] && stages_.size() > 1; ++op) {
        const Verb verb = operation(s, op).verb;
        if (!is_transfer(verb)) continue;
        const int count = static_cast<int>(stages_.size());
        const int boundary = info(verb).group == GroupId::kNextStage ? s : (s + count - 1) % count;
        sides[{boundary, transfers_activations(verb), is_send(verb)}].push_back({s, op});
      }
    }
    for (const auto& [key, own] : sides) {
      const auto& [boundary, forward, sends] = key;
      const auto other = sides.find({boundary, forward, !sends});
      for (std::size_t i = 0; i < own.size(); ++i) {
        if (other != sides.end() && i < other->second.size())
          others_[static_cast<std::size_t>(own[i].stage)][static_cast<std::size_t>(own[i].op)] = other->second[i];
      }
    }
  }

  /// Adds the next operation of a pipeline stage. Returns false if all its operations are added, or if the counterpart
  /// of the next operation is not issued yet.
  bool advance(int stage, std::vector<Cursor>& cursors) {
    Cursor& cursor = cursors[static_cast<std::size_t>(stage)];
    if (cursor.step == kSteps) return false;
    if (counts_[static_cast<std::size_t>(stage)] == 0) return cursor.step = kSteps, false;
    const bool meets = stages_.size() > 1 && is_transfer(operation(stage, cursor.op).verb);
    const Side other = others_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(cursor.op)];
    if (meets) {
      if (other.stage < 0) return false;
      const Cursor& other_cursor = cursors[static_cast<std::size_t>(other.stage)];
      if (other_cursor.step != cursor.step || other_cursor.op != other.op) return false;
      add_starts(other.stage, cursors[static_cast<std::size_t>(other.stage)]);
    }
    add_starts(stage, cursor);
    if (meets) {
      add_meeting(stage, cursor, other);
      move_on(other.stage, cursors[static_cast<std::size_t>(other.stage)]);
    } else {
      add_rest(stage, cursor);
    }
    move_on(stage, cursor);
    return true;
  }
  void move_on(int stage, Cursor& cursor) {
    if (++cursor.op < counts_[static_cast<std::size_t>(stage)]) return;
    cursor.op = 0;
    ++cursor.step;
  }
  void add_starts(int stage, Cursor& cursor) {
    for (int r = 0; r < ranks_; ++r) start(stage, cursor, r);
  }
  void add_rest(int stage, const Cursor& cursor) {
    const auto& [step, op, lane_end] = cursor;
    const Verb verb = operation(stage, op).verb;
    const GroupId group = operation(stage, op).group;
    for (int r = 0; r < ranks_; ++r) {
      for (const int q : waits_for_all(stage, op) ? members(group, r) : std::vector{r})
        edge(at(stage, step, op, kStart, q), at(stage, step, op, kAllStarted, r));
      edge(at(stage, step, op, kAllStarted, r), at(stage, step, op, kDone, r));
    }
    for (int r = 0; r < ranks_; ++r) {
      const bool ends_together =
          verb == Verb::kReplicaAllReduce || verb == Verb::kUseCollective || verb == Verb::kSumOverTensor;
      for (const int q : ends_together ? members(group, r) : std::vector{r})
        edge(at(stage, step, op, kDone, q), at(stage, step, op, kEnd, r));
    }
  }
  /// Both ranks of a transfer start it before either accesses memory. It ends on a rank only after both ranks have made
  /// their accesses.
  void add_meeting(int stage, const Cursor& cursor, const Side& other) {
    const Side both[] = {{stage, cursor.op}, other};
    for (int r = 0; r < ranks_; ++r) {
      for (const Side& a : both) {
        for (const Side& b : both)
          edge(at(b.stage, cursor.step, b.op, kStart, r), at(a.stage, cursor.step, a.op, kAllStarted, r));
        edge(at(a.stage, cursor.step, a.op, kAllStarted, r), at(a.stage, cursor.step, a.op, kDone, r));
      }
      for (const Side& a : both) {
        for (const Side& b : both)
          edge(at(b.stage, cursor.step, b.op, kDone, r), at(a.stage, cursor.step, a.op, kEnd, r));
      }
    }
  }

  /// Returns the ranks of a group, numbered within the pipeline stage. All pipeline stages have the same mesh.
  std::vector<int> members(GroupId group, int rank) const { return mesh_.members(group, rank); }

  bool waits_for_all(int stage, int op) const {
    const Plan& plan = *stages_[static_cast<std::size_t>(stage)];
    const Operation& operation = plan.schedule.operations[static_cast<std::size_t>(op)];
    switch (operation.verb) {
      case Verb::kGather:
        if (plan.policy.quantize_weights && plan.topology.node_count() == mesh_.shard) return false;
        return !plan.schedule.view && !plan.model.units[operation.operand].parameters.empty();
      case Verb::kGatherQuantizedShards:
        return plan.topology.node_count() > 1 && !plan.model.units[operation.operand].parameters.empty();
      case Verb::kUseCollective:
      case Verb::kSumOverTensor:
      case Verb::kReduce:
      case Verb::kReplicaAllReduce:
      case Verb::kAllGatherGradients:
      case Verb::kNorm:
      case Verb::kGatherMatrices:
      case Verb::kScatterMatrices:
      case Verb::kAllGatherParameters: return true;
      default: return false;
    }
  }
  void start(int stage, Cursor& cursor, int rank) {
    const auto& [step, op, lane_end] = cursor;
    const Operation& operation = this->operation(stage, op);
    int& last = cursor.lane_end[static_cast<std::size_t>(rank * kLaneCount + static_cast<int>(operation.lane))];
    if (last >= 0) edge(last, at(stage, step, op, kStart, rank));
    for (const Wait& wait : operation.after) {
      const int of = step - (wait.of_previous_step ? 1 : 0);
      if (of < 0) continue;
      for (const int q : members(wait.of, rank))
        edge(at(stage, of, wait.operation, kEnd, q), at(stage, step, op, kStart, rank));
    }
    last = at(stage, step, op, kEnd, rank);
  }
  void edge(int from, int to) {
    uint64_t* into = &before_[static_cast<std::size_t>(to) * words_];
    const uint64_t* more = &before_[static_cast<std::size_t>(from) * words_];
    for (std::size_t w = 0; w < words_; ++w) into[w] |= more[w];
    into[from / 64] |= uint64_t{1} << (from % 64);
  }

  const Stages& stages_;
  Mesh mesh_;
  int ranks_ = 0;                          // number of ranks of one pipeline stage
  std::vector<int> first_, counts_;        // the first event and the number of operations of each pipeline stage
  std::vector<std::vector<Side>> others_;  // one vector per pipeline stage, with the counterpart of each transfer
  std::size_t words_ = 0;
  std::vector<uint64_t> before_;
  std::string deadlock_;
};

struct RecordedAccess {
  int stage, step, op, rank;  // the operation that makes the access, and the rank within the pipeline stage
  int64_t begin, end;         // accessed bytes, as offsets in the memory of the rank that owns them
  bool writes;
  int after, until;  // the access happens between these two events
  bool internal;     // does not race with accesses of the same operation, because the communicator orders them
};

class Search {
 public:
  /// `memory` receives the accesses, with one vector for the memory of each rank of each pipeline stage.
  Search(const Stages& stages, int index, const Graph& graph, std::vector<std::vector<RecordedAccess>>& memory)
      : plan_(*stages[static_cast<std::size_t>(index)]),
        stages_(stages),
        index_(index),
        graph_(graph),
        ranks_(plan_.topology.rank_count()),
        stage_(plan_.schedule.zero_stage),
        replicas_(plan_.policy.replica_count),
        tensors_(simulated_mesh(plan_).tensor),
        several_nodes_(!plan_.topology.one_node()),
        in_place_(stage_ <= 1 && !plan_.schedule.accumulate_into_shard && plan_.policy.replica_count == 1),
        gather_count_(plan_.model.units.size(), 0),
        memory_(memory) {}

  /// Records all accesses of the pipeline stage. Returns a description of an access to a buffer that does not exist, if
  /// any.
  std::string record_all() {
    for (step_ = 0; step_ < kSteps; ++step_) {
      reduce_count_.assign(plan_.model.units.size(), 0);
      for (op_ = 0; op_ < static_cast<int>(plan_.schedule.operations.size()); ++op_) {
        if (operation().verb == Verb::kGather) ++gather_count_[operation().operand];
        for (replica_ = 0; replica_ < replicas_; ++replica_) {
          for (rank_ = 0; rank_ < ranks_; ++rank_) {
            for (tensor_ = 0; tensor_ < tensors_; ++tensor_) access_all();
          }
        }
        if (operation().verb == Verb::kReduce) ++reduce_count_[operation().operand];
      }
    }
    return race_;
  }

  /// Computes the result of the free function narrowest_groups() from the recorded accesses.
  std::vector<std::set<GroupId>> narrowest_groups() const {
    std::vector<std::set<GroupId>> groups(plan_.schedule.buffers.size());
    for (std::size_t b = 0; b < groups.size(); ++b) {
      for (int g = 0; g < kGroupCount; ++g) groups[b].insert(static_cast<GroupId>(g));
    }
    for (const auto& [memory, ranks] : accessing_ranks_) {
      const auto& [b, owner] = memory;
      std::size_t fewest = SIZE_MAX;
      for (int g = 0; g < kGroupCount; ++g) {
        if (const std::size_t count = member_count_if_all(static_cast<GroupId>(g), owner, ranks); count > 0)
          fewest = std::min(fewest, count);
      }
      std::erase_if(groups[static_cast<std::size_t>(b - plan_.schedule.buffers.data())],
                    [&](GroupId group) { return member_count_if_all(group, owner, ranks) != fewest; });
    }
    return groups;
  }

 private:
  const Operation& operation() const { return plan_.schedule.operations[op_]; }
  /// The operation, or the model code that runs it if it is a collective of a use.
  const Operation& code() const { return plan_.schedule.operations[code_ >= 0 ? code_ : op_]; }
  int world_rank(int replica, int rank, int tensor) const {
    return ((plan_.stage.index * replicas_ + replica) * ranks_ + rank) * tensors_ + tensor;
  }
  int own_world_rank() const { return world_rank(replica_, rank_, tensor_); }
  /// Returns the number of ranks in the group of `owner`, or 0 if one of `ranks` is not in that group.
  std::size_t member_count_if_all(GroupId group, int owner, const std::set<int>& ranks) const {
    const std::vector<int> members = simulated_mesh(plan_).members(group, owner);
    const auto is_member = [&](int rank) { return std::ranges::find(members, rank) != members.end(); };
    return std::ranges::all_of(ranks, is_member) ? members.size() : 0;
  }

  /// Returns the newest live buffer with this role and flat buffer. Prefers a buffer for the operation's micro-batch to
  /// one that all micro-batches share.
  const PlannedBuffer* buffer(Role role, int32_t flat) {
    const PlannedBuffer* found = nullptr;
    const auto is_better = [&](const PlannedBuffer& b) {
      if (!found || b.micro_batch != found->micro_batch) return !found || b.micro_batch > found->micro_batch;
      return b.first > found->first;
    };
    for (const PlannedBuffer& b : plan_.schedule.buffers) {
      const bool alive = b.always || (b.first <= op_ && op_ <= b.last);
      const bool of_micro_batch = b.micro_batch < 0 || b.micro_batch == operation().micro_batch;
      if (b.role == role && b.flat == flat && alive && of_micro_batch && is_better(b)) found = &b;
    }
    if (!found) race_ = fmt::format("operation {} accesses a buffer that does not exist", op_);
    return found;
  }

  /// Divides a buffer into `of` equal parts and selects the parts [first, first + count).
  struct Parts {
    int first = 0, count = 1, of = 1;
  };
  void access_parts(int memory, Role role, int32_t flat, Parts parts, bool writes, Event after, bool internal = false,
                    Event until = kDone) {
    const PlannedBuffer* b = buffer(role, flat);
    if (!b || b->size_bytes == 0) return;
    accessing_ranks_[{b, world_rank(memory_replica(), memory, memory_tensor())}].insert(own_world_rank());
    const int64_t base = b->offset_bytes + kSpace * static_cast<int64_t>(b->space);
    const int64_t part = b->size_bytes / parts.of;
    record(memory, base + part * parts.first, base + part * (parts.first + parts.count), writes, after, internal,
           until);
  }
  /// Records an access to the memory of rank `memory` of replica `other_replica_`. If `other_replica_` is -1, uses this
  /// rank's replica.
  void record(int memory, int64_t begin, int64_t end, bool writes, Event after, bool internal, Event until = kDone) {
    record_at(index_, memory_replica() * ranks_ + memory, {begin, end}, writes, {after, until}, internal);
  }
  /// Records an access to the memory of rank `memory` of pipeline stage `stage`.
  void record_at(int stage, int memory, std::pair<int64_t, int64_t> bytes, bool writes, std::pair<Event, Event> during,
                 bool internal) {
    if (code_ >= 0) {  // model code after the last barrier of a collective
      during = {kAllStarted, kEnd};
      internal = true;
    }
    const int rank = (replica_ * ranks_ + rank_) * tensors_ + tensor_;
    memory_[static_cast<std::size_t>((stage * replicas_ * ranks_ + memory) * tensors_ + memory_tensor())].push_back(
        {index_, step_, op_, rank, bytes.first, bytes.second, writes, graph_.at(index_, step_, op_, during.first, rank),
         graph_.at(index_, step_, op_, during.second, rank), internal});
  }
  int memory_replica() const { return other_replica_ < 0 ? replica_ : other_replica_; }
  int memory_tensor() const { return other_tensor_ < 0 ? tensor_ : other_tensor_; }
  /// Records reads of a buffer in all other replicas. In each of them, this rank reads the memory of the rank that has
  /// the same index within its replica. The reads begin after all ranks have started the collective.
  void read_of_other_replicas(Role role, int32_t flat) {
    for (other_replica_ = 0; other_replica_ < replicas_; ++other_replica_) {
      if (other_replica_ != replica_) access_parts(rank_, role, flat, {}, false, kAllStarted, true);
    }
    other_replica_ = -1;
  }
  void access_own(Role role, int32_t flat, bool writes, Event after = kStart) {
    access_parts(rank_, role, flat, {}, writes, after);
  }
  /// Records that this rank writes, in its own memory, the parts of all other ranks.
  void write_others(Role role, int32_t flat) {
    access_parts(rank_, role, flat, {0, rank_, ranks_}, true, kAllStarted);
    access_parts(rank_, role, flat, {rank_ + 1, ranks_ - rank_ - 1, ranks_}, true, kAllStarted);
  }
  /// Records that this rank reads the result buffers of all other ranks, because a collective over several nodes
  /// forwards data between ranks.
  void relay(Role role, int32_t flat) {
    if (!several_nodes_) return;
    for (int q = 0; q < ranks_; ++q) {
      if (q != rank_) access_parts(q, role, flat, {}, false, kAllStarted, true);
    }
  }
  /// Records an access to a virtual byte that represents the model's pointers to a unit. A gather or release writes the
  /// byte, and model code reads it. Each gather uses a new byte.
  void pointer(UnitId unit, bool writes) {
    const auto units = static_cast<int64_t>(plan_.model.units.size());
    const int64_t at = kPointers + gather_count_[unit] * units + unit;
    record(rank_, at, at + 1, writes, kStart, false);
  }

  void access_all() {
    for (const PlannedBuffer& b : plan_.schedule.buffers) {
      if (!b.always && b.first == op_ && b.size_bytes > 0) {
        const int64_t begin = b.offset_bytes + kSpace * static_cast<int64_t>(b.space);
        record(rank_, begin, begin + b.size_bytes, true, kStart, false, kStart);
      }
    }
    if (is_transfer(operation().verb)) return transfer();
    if (operation().verb == Verb::kNorm) return norm();
    if (is_model_code(operation().verb)) return model_code();
    if (operation().verb == Verb::kUseCollective) return use_collective();
    if (belongs_to_matrix_group(operation().verb)) return group(plan_.matrix_groups[operation().operand]);
    if (operation().verb == Verb::kCopyIn || operation().verb == Verb::kCopyOut) return copy();
    const UnitId unit = operation().operand;
    if (operation().verb == Verb::kGather || operation().verb == Verb::kRelease) pointer(unit, true);
    for_flats(unit, [&](int32_t f) { access_flat(f); });
  }

  void model_code() {
    activations();
    for (const UnitId unit : plan_.model.uses[code().operand]) {
      if (code().verb != Verb::kBackwardWeights) pointer(unit, false);
      for_flats(unit, [&](int32_t f) { access_parameters(f); });
    }
  }

  /// All ranks of the tensor group read and write the data of all of them. The communicator orders these accesses. Then
  /// the rest of the model code runs, up to the next collective.
  void use_collective() {
    const UseCollective& what = plan_.model.activations.uses[operation().operand].collectives[operation().collective];
    const std::map<UseBuffer, Role> roles = {{UseBuffer::kOutput, Role::kOutputActivations},
                                             {UseBuffer::kSaved, Role::kSavedActivations},
                                             {UseBuffer::kScratch, Role::kScratch},
                                             {UseBuffer::kBackward, Role::kActivationGradients}};
    const int32_t owner = what.buffer == UseBuffer::kBackward ? -1 : operation().operand;
    for (other_tensor_ = 0; other_tensor_ < tensors_; ++other_tensor_)
      access_parts(rank_, roles.at(what.buffer), owner, {}, other_tensor_ == tensor_, kAllStarted, true);
    other_tensor_ = -1;
    if (what.kind != CollectiveKind::kGather && stages_collectives())
      access_own(Role::kCollectiveStaging, -1, true, kAllStarted);
    code_ = op_;
    while (!is_model_code(plan_.schedule.operations[code_].verb)) --code_;
    model_code();
    code_ = -1;
  }
  /// All ranks of the tensor group read and write the gradients of all of them. The communicator orders these accesses.
  void sum_over_tensor(int32_t f) {
    for (other_tensor_ = 0; other_tensor_ < tensors_; ++other_tensor_)
      access_parts(rank_, Role::kGradients, f, {}, other_tensor_ == tensor_, kAllStarted, true);
    other_tensor_ = -1;
    if (stages_tensor_sums(plan_.policy.precision.gradients) && plan_.flats[f].layout.flat_count() > 0)
      access_own(Role::kTensorSumStaging, -1, true, kAllStarted);
  }
  /// Whether any collective of the model code of this stage adds in staging memory. All of them then plan it.
  bool stages_collectives() const {
    for (const VirtualStage& run : plan_.stage.runs) {
      for (int32_t use = run.first_use; use < run.end_use; ++use) {
        for (const UseCollective& what : plan_.model.activations.uses[use].collectives) {
          if (what.kind != CollectiveKind::kGather && stages_tensor_sums(what.dtype)) return true;
        }
      }
    }
    return false;
  }
  bool stages_tensor_sums(DType dtype) const {
    return plan_.world.over_nccl ? nccl_cannot_add(dtype, dtype) : tensor_group_spans_nodes();
  }
  /// Whether any tensor group of host ranks spans nodes. All ranks then plan staging memory.
  bool tensor_group_spans_nodes() const {
    const int per_stage = plan_.world.rank_count() / plan_.stage.count, first = plan_.stage.index * per_stage;
    bool spans = false;
    for (int r = first; r < first + per_stage; ++r) {
      const int leader = first + (r - first) / tensors_ * tensors_;
      spans = spans || plan_.world.node_of_rank[r] != plan_.world.node_of_rank[leader];
    }
    return spans && !plan_.world.has_gpus();
  }

  /// The receiving rank writes its own buffer, and reads the memory of the sender at the planned offset.
  void transfer() {
    const bool forward = transfers_activations(operation().verb), sends = is_send(operation().verb);
    const Role role = forward ? Role::kOutputActivations : Role::kActivationGradients;
    access_own(role, forward ? operation().operand : -1, !sends, kAllStarted);
    if (const PlannedBuffer* b = buffer(role, forward ? operation().operand : -1); b != nullptr && b->size_bytes > 0) {
      const int own = own_world_rank();
      for (const int q : simulated_mesh(plan_).members(operation().group, own)) accessing_ranks_[{b, own}].insert(q);
    }
    if (sends || stages_.size() == 1) return;
    const int64_t begin = operation().peer_offset_bytes;
    const int count = static_cast<int>(stages_.size());
    const int sender = (index_ + (forward ? count - 1 : 1)) % count;
    record_at(sender, replica_ * ranks_ + rank_, {begin, begin + transfer_bytes(plan_.model, operation())}, false,
              {kAllStarted, kDone}, true);
  }

  void activations() {
    const ActivationSpec& spec = plan_.model.activations;
    if (spec.uses.empty()) return;
    const int32_t use = code().operand;
    const Verb verb = code().verb;
    const bool weights = verb == Verb::kBackwardWeights;
    const bool back = verb == Verb::kBackward || verb == Verb::kBackwardInput || weights;
    if (spec.uses[use].weight_inputs_bytes > 0 && (weights || verb == Verb::kBackwardInput))
      access_own(Role::kWeightInputs, use, !weights);
    if (spec.uses[use].scratch_bytes > 0) access_own(Role::kScratch, use, true);
    if (spec.uses[use].kept_bytes > 0) access_own(Role::kSavedActivations, use, !back);
    const bool first = verb == Verb::kForward;
    if (spec.uses[use].output_bytes > 0 && !weights && (first || spec.uses[use].output_in_backward))
      access_own(Role::kOutputActivations, use, !back);
    if (use > 0 && spec.uses[use - 1].output_bytes > 0 && (!back || spec.uses[use].input_in_backward))
      access_own(Role::kOutputActivations, use - 1, false);
    if (back && !weights && spec.backward_bytes > 0) access_own(Role::kActivationGradients, -1, true);
  }

  template <typename Visit>
  void for_flats(UnitId unit, Visit visit) {
    for (std::size_t f = 0; f < plan_.flats.size(); ++f) {
      if (plan_.flats[f].unit == unit) visit(static_cast<int32_t>(f));
    }
  }

  void access_parameters(int32_t f) {
    const bool holds_full_parameters = stage_ < 3;
    const Verb verb = code().verb;
    if ((verb == Verb::kBackward || verb == Verb::kBackwardWeights) && plan_.flats[f].trainable)
      access_own(Role::kGradients, f, true);
    if (verb == Verb::kBackwardWeights) return;
    if (holds_full_parameters) {
      access_own(Role::kParameters, f, false);
    } else if (plan_.schedule.view) {
      for (int q = 0; q < ranks_; ++q) access_parts(q, Role::kParameters, f, {}, false, kStart);
    } else {
      access_own(Role::kGathered, f, false);
    }
  }

  void norm() {
    bool trains = false, divides_sums = false;
    for (std::size_t f = 0; f < plan_.flats.size(); ++f) {
      if (!plan_.trains(static_cast<int32_t>(f))) continue;
      const int64_t shard = plan_.flats[f].layout.shard_count();
      trains = trains || shard > 0;
      divides_sums = divides_sums || shard >= 2048 * kBlockElements;
      access_own(Role::kBlockSquares, static_cast<int32_t>(f), false);
      if (!plan_.policy.reproducible || plan_.policy.update_in_backward || plan_.policy.evaluation) continue;
      access_own(Role::kBlockSquares, static_cast<int32_t>(f), true);
      const bool full = stage_ == 0 || (stage_ == 1 && !in_levels() && plan_.policy.replica_count == 1);
      access_own(full ? Role::kGradients : Role::kReducedGradients, static_cast<int32_t>(f), false);
    }
    if (trains && plan_.topology.has_gpus()) access_own(Role::kNormRuns, -1, false);
    if (divides_sums && plan_.topology.has_gpus()) access_own(Role::kNormPartialSums, -1, true);
    for (int q = 0; q < ranks_; ++q) {
      if (q != rank_) access_parts(q, Role::kNormParts, -1, {q, 1, ranks_}, false, kAllStarted, true);
    }
    access_parts(rank_, Role::kNormParts, -1, {0, rank_, ranks_}, true, kAllStarted);
    access_parts(rank_, Role::kNormParts, -1, {rank_ + 1, ranks_ - rank_ - 1, ranks_}, true, kAllStarted);
    record(rank_, kDecision, kDecision + 1, true, kStart, false);
  }

  void access_flat(int32_t f) {
    const Verb verb = operation().verb;
    if (verb == Verb::kGatherQuantizedShards) gather_quantized_shards(f);
    if (verb == Verb::kGather && plan_.policy.quantize_weights) return gather_quantized(f);
    if (verb == Verb::kGather && !plan_.schedule.view) {
      const Role shard = plan_.policy.offload_parameters == Offload::kNone || plan_.flats[f].layout.flat_count() == 0
                             ? Role::kParameters
                             : Role::kStagedShard;
      for (int q = 0; q < ranks_; ++q) access_parts(q, shard, f, {}, false, kAllStarted);
      access_own(Role::kGathered, f, true);
      relay(Role::kGathered, f);
    }
    const bool model_may_read = verb == Verb::kRelease || (verb == Verb::kGather && plan_.schedule.view);
    if (model_may_read) access_parameters(f);  // a view is readable from its gather to its release
    if (verb == Verb::kCompareState) compare_state(f);
    if (!plan_.flats[f].trainable) return;
    if (verb == Verb::kSumOverTensor && plan_.flats[f].gradients == TensorGradients::kSum) sum_over_tensor(f);
    if (verb == Verb::kDigestGradients) {
      access_own(Role::kGradients, f, false);
      access_own(Role::kGradientDigests, f, true);
    }
    if (verb == Verb::kReduce) reduce(f);
    if (verb == Verb::kReplicaAllReduce) replica_all_reduce(f);
    if (verb == Verb::kAllGatherGradients) all_gather_gradients(f);
    if (verb == Verb::kUpdate) update(f);
    if (verb == Verb::kAllGatherParameters) {
      for (int q = 0; q < ranks_; ++q) access_parts(q, Role::kParameters, f, {q, 1, ranks_}, false, kAllStarted);
      write_others(Role::kParameters, f);
      relay(Role::kParameters, f);
      if (plan_.policy.check_state) all_gather_digests(f);
    }
  }

  /// Compares the parameters that this rank stores but does not update.
  void compare_state(int32_t f) {
    if (plan_.flats[f].trainable && (stage_ == 0 || stage_ == 3 || ranks_ == 1)) return;
    if (plan_.flats[f].layout.flat_count() == 0) return;
    const bool offloaded = plan_.policy.offload_parameters != Offload::kNone;
    access_own(offloaded ? Role::kStagedShard : Role::kParameters, f, false);
    access_own(Role::kStateDigests, f, false);
  }

  /// The digests of the parameters, one part for each rank, precede those of the masters and of the optimizer states of
  /// this rank's shard, which are one part each.
  void all_gather_digests(int32_t f) {
    const int parts = ranks_ + (plan_.policy.precision.compute != DType::kFloat32 ? 1 : 0) +
                      (plan_.state_bytes_per_block(f) > 0 ? 1 : 0);
    for (int q = 0; q < ranks_; ++q) access_parts(q, Role::kStateDigests, f, {q, 1, parts}, false, kAllStarted);
    access_parts(rank_, Role::kStateDigests, f, {0, rank_, parts}, true, kAllStarted);
    access_parts(rank_, Role::kStateDigests, f, {rank_ + 1, ranks_ - rank_ - 1, parts}, true, kAllStarted);
    for (int q = 0; q < ranks_ && several_nodes_; ++q) {
      if (q != rank_) access_parts(q, Role::kStateDigests, f, {0, ranks_, parts}, false, kAllStarted, true);
    }
  }

  int nodes() const { return plan_.topology.node_count(); }
  int node(int rank) const { return plan_.topology.node_of_rank[rank]; }
  int rank_in_node(int rank) const { return rank % (ranks_ / nodes()); }

  void gather_quantized_shards(int32_t f) {
    access_own(Role::kParameters, f, false);
    // This rank quantizes its shard before it arrives at the collective.
    access_parts(rank_, Role::kQuantizedShards, f, {node(rank_), 1, nodes()}, true, kStart, false, kStart);
    for (int q = 0; q < ranks_; ++q) {
      if (q == rank_ || rank_in_node(q) != rank_in_node(rank_)) continue;
      access_parts(q, Role::kQuantizedShards, f, {node(q), 1, nodes()}, false, kAllStarted);
      access_parts(rank_, Role::kQuantizedShards, f, {node(q), 1, nodes()}, true, kAllStarted);
    }
  }

  void gather_quantized(int32_t f) {
    const bool several_ranks_per_node = nodes() < ranks_;
    for (int q = 0; q < ranks_; ++q) {
      if (node(q) == node(rank_))
        access_parts(q, Role::kQuantizedShards, f, {}, false, several_ranks_per_node ? kAllStarted : kStart);
    }
    if (several_ranks_per_node) access_own(Role::kQuantizedParameters, f, true);
    access_own(Role::kGathered, f, true);
  }

  /// A reduce quantizes sums between two barriers, and other ranks read the sums after the second barrier. The graph
  /// has no event for the second barrier, so these reads are recorded as internal.
  void reduce_between_nodes(int32_t f) {
    const bool several_ranks_per_node = nodes() < ranks_;
    if (several_ranks_per_node) access_own(Role::kNodePartialSums, f, true, kAllStarted);
    access_own(Role::kFp32Sums, f, true);
    access_own(Role::kErrorFeedbackResidual, f, true);
    access_own(Role::kQuantizedSums, f, true);
    access_own(Role::kQuantizedReceived, f, true);
    for (int q = 0; q < ranks_; ++q) {
      if (q != rank_ && rank_in_node(q) == rank_in_node(rank_))
        access_parts(q, Role::kQuantizedSums, f, {node(rank_), 1, nodes()}, false, kAllStarted, true);
    }
  }

  /// Records that the operation copies the buffers of its operand, which is one unit or one matrix group.
  void copy() {
    const bool in = operation().verb == Verb::kCopyIn;
    const std::pair<Role, Role> roles[] = {{Role::kStagedShard, Role::kOffloadedParameters},
                                           {Role::kParameters, Role::kOffloadedParameters},
                                           {Role::kMaster, Role::kOffloadedMaster},
                                           {Role::kOptimizer, Role::kOffloadedOptimizer}};
    for (const auto& [slot, offloaded] : roles) {
      for (const PlannedBuffer& b : plan_.schedule.buffers) {
        if (b.role != slot || b.always || (in ? b.first : b.last) != op_) continue;
        access_own(offloaded, b.flat, !in);
        access_own(slot, b.flat, in);
      }
    }
  }

  void reduce(int32_t f) {
    const bool cast = plan_.policy.precision.sent() != plan_.policy.precision.gradients;
    if (cast) {
      access_own(Role::kGradients, f, false);
      // The cast ends before this rank arrives at the collective, and other ranks read the result after kAllStarted. So
      // the write is recorded as if it ended at kStart.
      access_parts(rank_, Role::kSentGradients, f, {}, true, kStart, false, kStart);
    }
    const Role sent = cast ? Role::kSentGradients : Role::kGradients;
    if (plan_.policy.quantize_gradients && several_nodes_ && plan_.policy.replica_count == 1) {
      for (int q = 0; q < ranks_; ++q) {
        for (int n = 0; n < nodes() && node(q) == node(rank_); ++n)
          access_parts(q, sent, f, {n * (ranks_ / nodes()) + rank_in_node(rank_), 1, ranks_}, false,
                       q == rank_ ? kStart : kAllStarted);
      }
      reduce_between_nodes(f);
    } else {
      for (int q = 0; q < ranks_; ++q) access_parts(q, sent, f, {rank_, 1, ranks_}, false, kAllStarted);
      if (plan_.topology.over_nccl ? ranks_ > 1 : several_nodes_)
        access_staging(Role::kReduceStaging, plan_.policy.precision.sent(),
                       replicas_ > 1 ? DType::kFloat32 : plan_.policy.precision.gradients);
      repeat_sums(f, Role::kRepeatedSums, Role::kSumDigests, ranks_);
      for (int other = 1; other <= 2 && plan_.policy.replay_every != 0; ++other) {
        for (int q = 0; q < ranks_; ++q)
          access_parts(q, sent, f, {(rank_ + other) % ranks_, 1, ranks_}, false, kAllStarted, true);
      }
    }
    add_up(f);
    for (const PlannedBuffer& b : plan_.schedule.buffers) {
      if (plan_.policy.replica_count == 1 && b.role == Role::kBlockSquares && b.flat == f && b.first <= op_ &&
          op_ <= b.last)
        access_own(Role::kBlockSquares, f, true);
    }
  }

  /// With replays, each rank also adds the parts of other ranks, before any rank writes its own sum. The graph has no
  /// event between the two, so the caller records these reads as internal.
  void repeat_sums(int32_t f, Role sums, Role digests, int group_size) {
    if (plan_.policy.replay_every == 0 || group_size == 1) return;
    access_own(sums, f, true);
    access_own(digests, f, true);
  }

  /// Records a write to the staging memory of collectives between host nodes, or over NCCL. Records nothing if no flat
  /// buffer with elements is reduced in it. The ranks add `from` to `to`.
  void access_staging(Role role, DType from, DType to) {
    const Topology& ranks = plan_.data_topology;
    const auto reduced = [&](const FlatSpec& flat) {
      const bool copies = tensors_ > 1 && flat.gradients != TensorGradients::kSlice;
      return flat.trainable && plan_.unit_is_here[flat.unit] && flat.layout.flat_count() > 0 &&
             (!ranks.over_nccl || copies || nccl_cannot_add(from, to));
    };
    if ((ranks.over_nccl || !ranks.has_gpus()) && std::ranges::any_of(plan_.flats, reduced))
      access_own(role, -1, true, kAllStarted);
  }

  /// Whether NCCL cannot add this data in the order that the plan requires.
  bool nccl_cannot_add(DType from, DType to) const {
    return plan_.policy.reproducible || plan_.policy.replay_every != 0 || from != DType::kFloat32 ||
           to != DType::kFloat32;
  }

  bool in_levels() const { return plan_.policy.reproducible && plan_.policy.micro_batch_count > 1; }

  void add_up(int32_t f) {
    const int before = reduce_count_[plan_.flats[f].unit];
    if (in_levels() && replicas_ > 1) {
      access_own(Role::kReplicaPartialSums, f, true);
    } else if (in_levels()) {
      add_levels(f, before);
    } else if (in_place_) {
      access_parts(rank_, Role::kGradients, f, {rank_, 1, ranks_}, true, kAllStarted);
    } else {
      access_own(replicas_ > 1 ? Role::kReplicaPartialSums : Role::kReducedGradients, f, true);
      if (before > 0) access_own(Role::kMicroBatchSum, f, true);
    }
  }

  /// Records the additions of one micro-batch to earlier sums, as in a binary counter: one level is merged for each
  /// trailing 1 of `before`. With replicas, the other replicas read the sum of the micro-batch.
  void add_levels(int32_t f, int before) {
    int level = 0;
    for (; (before >> level) & 1; ++level) access_own(tree_level_role(level), f, false);
    const Role sum = before + 1 == plan_.policy.micro_batch_count ? Role::kReducedGradients : tree_level_role(level);
    if (level > 0) access_own(Role::kMicroBatchSum, f, true);
    access_own(sum, f, true);
    read_of_other_replicas(level > 0 ? Role::kMicroBatchSum : sum, f);
  }

  void replica_all_reduce(int32_t f) {
    access_own(Role::kReplicaPartialSums, f, false);
    bool spans_nodes = false;  // true if any replicate group spans nodes
    for (int r = 0; r < plan_.data_topology.rank_count(); ++r)
      spans_nodes = spans_nodes || plan_.data_topology.node_of_rank[r] != plan_.data_topology.node_of_rank[r % ranks_];
    const bool encoded = plan_.policy.quantize_gradients && !plan_.data_topology.one_node();
    if ((spans_nodes || plan_.data_topology.over_nccl) && !encoded)
      access_staging(Role::kExchangeStaging, DType::kFloat32, plan_.policy.precision.gradients);
    if (encoded) {
      for (const Role role :
           {Role::kErrorFeedbackResidual, Role::kQuantizedSums, Role::kQuantizedReceived, Role::kFp32Sums})
        access_own(role, f, true);
      read_of_other_replicas(Role::kQuantizedSums, f);
      read_of_other_replicas(Role::kQuantizedReceived, f);
      access_own(Role::kReducedGradients, f, true);
      access_own(Role::kBlockSquares, f, true);
      return;
    }
    read_of_other_replicas(Role::kReplicaPartialSums, f);
    repeat_sums(f, Role::kRepeatedReplicaSums, Role::kReplicaSumDigests, replicas_);
    const int reduced = reduce_count_[plan_.flats[f].unit];
    if (in_levels()) return add_levels(f, reduced - 1);
    for (const Role role : {Role::kReducedGradients, Role::kBlockSquares}) {
      access_own(role, f, true);
      read_of_other_replicas(role, f);
    }
  }

  void all_gather_gradients(int32_t f) {
    for (int q = 0; q < ranks_; ++q) {
      if (in_place_) {
        access_parts(q, Role::kGradients, f, {q, 1, ranks_}, false, kAllStarted);
      } else {
        access_parts(q, Role::kReducedGradients, f, {}, false, kAllStarted);
      }
    }
    if (in_place_) {
      write_others(Role::kGradients, f);
    } else {
      access_own(Role::kGradients, f, true, kAllStarted);
    }
    relay(Role::kGradients, f);
  }

  void update(int32_t f) {
    if (!plan_.policy.update_in_backward) record(rank_, kDecision, kDecision + 1, false, kStart, false);
    if (plan_.flats[f].matrices) {
      access_own(Role::kMuonDirections, f, false);
    } else {
      gradient(f);
      if (plan_.policy.state_bytes_per_block > 0) access_own(Role::kOptimizer, f, true);
    }
    if (plan_.policy.precision.compute != DType::kFloat32) access_own(Role::kMaster, f, true);
    const bool rounds = plan_.policy.quantize_gradients &&
                        (plan_.policy.replica_count > 1 ? !plan_.data_topology.one_node() : several_nodes_);
    if (rounds && !plan_.policy.update_in_backward)
      access_own(Role::kErrorFeedbackResidual, f, true);  // a skipped step resets the residual
    access_parts(rank_, Role::kParameters, f, own_part(), true, kStart);
    if (plan_.policy.check_state) access_own(Role::kStateDigests, f, true);
  }

  Parts own_part() const { return stage_ == 3 || stage_ == 0 ? Parts{} : Parts{rank_, 1, ranks_}; }

  void gradient(int32_t f) {
    if (stage_ == 0 || in_place_) {
      access_parts(rank_, Role::kGradients, f, own_part(), false, kStart);
    } else {
      access_own(Role::kReducedGradients, f, false);
    }
  }

  void group(const MatrixGroup& matrix_group) {
    const Verb verb = operation().verb;
    if (verb == Verb::kMuonMomentum) {
      record(rank_, kDecision, kDecision + 1, false, kStart, false);
      for (const int32_t f : matrix_group.flats) {
        gradient(f);
        access_own(Role::kOptimizer, f, true);
        if (plan_.policy.check_state) access_own(Role::kStateDigests, f, true);
        access_own(Role::kMuonDirections, f, true);
      }
    }
    if (verb == Verb::kOrthogonalize) access_own(Role::kOrthogonalizeScratch, operation().operand, true);
    if (verb == Verb::kMuonMomentum) return;
    access_whole_buffers(matrix_group);
    for (const OwnedMatrix& matrix : matrix_group.matrices)
      matrix_group.in_place ? access_in_place(matrix) : access_between_shards(matrix);
  }

  /// Records accesses to complete buffers, for the comparison with other operations. Byte ranges matter only for the
  /// accesses of several ranks in one operation.
  void access_whole_buffers(const MatrixGroup& matrix_group) {
    const Verb verb = operation().verb;
    const int32_t group = operation().operand;
    const Event after = verb == Verb::kOrthogonalize ? kStart : kAllStarted;
    const bool accesses_directions = matrix_group.in_place || verb != Verb::kOrthogonalize;
    for (const int32_t f : matrix_group.flats) {
      if (accesses_directions)
        access_parts(rank_, Role::kMuonDirections, f, {}, verb != Verb::kGatherMatrices, after, true);
      for (int q = 0;
           q < ranks_ && (verb == Verb::kGatherMatrices || (verb == Verb::kScatterMatrices && matrix_group.in_place));
           ++q)
        access_parts(q, Role::kMuonDirections, f, {}, false, after, true);
    }
    if (matrix_group.in_place) return;
    access_parts(rank_, Role::kOwnedMatrices, group, {}, verb != Verb::kScatterMatrices, after, true);
    for (int q = 0; q < ranks_ && verb == Verb::kScatterMatrices; ++q)
      access_parts(q, Role::kOwnedMatrices, group, {}, false, after, true);
  }

  /// Records an access to bytes [begin, end) of the buffer in `memory`.
  void access_range(int memory, Role role, int32_t owner, std::pair<int64_t, int64_t> bytes, bool writes) {
    const PlannedBuffer* b = buffer(role, owner);
    if (!b) return;
    const int64_t base = b->offset_bytes + kSpace * static_cast<int64_t>(b->space);
    const Event after = operation().verb == Verb::kOrthogonalize ? kStart : kAllStarted;
    record(memory, base + bytes.first, base + bytes.second, writes, after, false);
  }

  void access_in_place(const OwnedMatrix& matrix) {
    const int64_t begin = plan_.flats[matrix.flat].layout.tensor_offset(matrix.tensor) * 4;
    const std::pair<int64_t, int64_t> bytes{begin, begin + matrix.size_bytes()};
    const bool owned = matrix.owner == rank_;
    if (operation().verb == Verb::kOrthogonalize) {
      if (owned) access_range(rank_, Role::kMuonDirections, matrix.flat, bytes, true);
    } else if (!owned) {
      access_range(matrix.owner, Role::kMuonDirections, matrix.flat, bytes, false);
      access_range(rank_, Role::kMuonDirections, matrix.flat, bytes, true);
    }
  }

  void access_between_shards(const OwnedMatrix& matrix) {
    const bool owned = matrix.owner == rank_;
    const int32_t group = operation().operand;
    if (operation().verb == Verb::kOrthogonalize) {
      if (owned)
        access_range(rank_, Role::kOwnedMatrices, group,
                     {matrix.offset_bytes, matrix.offset_bytes + matrix.size_bytes()}, true);
      return;
    }
    for (int q = 0; q < ranks_; ++q) {
      for (const Piece& piece : plan_.flats[matrix.flat].layout.pieces(q)) {
        if (piece.tensor != matrix.tensor) continue;
        const std::pair<int64_t, int64_t> in_shard{piece.shard_offset * 4, (piece.shard_offset + piece.count) * 4};
        const int64_t at = matrix.offset_bytes + piece.tensor_offset * 4;
        const std::pair<int64_t, int64_t> in_whole{at, at + piece.count * 4};
        if (operation().verb == Verb::kGatherMatrices && owned) {
          access_range(q, Role::kMuonDirections, matrix.flat, in_shard, false);
          access_range(rank_, Role::kOwnedMatrices, group, in_whole, true);
        }
        if (operation().verb == Verb::kScatterMatrices && q == rank_) {
          access_range(matrix.owner, Role::kOwnedMatrices, group, in_whole, false);
          access_range(rank_, Role::kMuonDirections, matrix.flat, in_shard, true);
        }
      }
    }
  }

  const Plan& plan_;
  const Stages& stages_;
  int index_;  // index of the pipeline stage
  const Graph& graph_;
  int ranks_, stage_;  // the number of ranks of one replica, and the ZeRO stage
  int replicas_, tensors_;
  bool several_nodes_, in_place_;
  int step_ = 0, op_ = 0, rank_ = 0, replica_ = 0, tensor_ = 0;
  int code_ = -1;                  // the model code whose part after a collective is recorded, or -1
  int other_tensor_ = -1;          // the tensor coordinate whose memory record() uses, or -1 for tensor_
  int other_replica_ = -1;         // the replica whose memory record() uses, or -1 for replica_
  std::vector<int> reduce_count_;  // how often each unit was reduced in this step
  std::vector<int> gather_count_;  // how often each unit was gathered in all steps
  std::vector<std::vector<RecordedAccess>>& memory_;
  /// The ranks that access a buffer or take part in its transfer. The key is the buffer and the rank in whose memory
  /// the buffer is.
  std::map<std::pair<const PlannedBuffer*, int>, std::set<int>> accessing_ranks_;
  std::string race_;
};

/// Describes the first race among `accesses`, which all access the memory of one rank.
std::string compare(const std::vector<RecordedAccess>& accesses, const Graph& graph) {
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    for (std::size_t j = i + 1; j < accesses.size(); ++j) {
      const RecordedAccess &a = accesses[i], &b = accesses[j];
      if (!(a.writes || b.writes) || a.begin >= b.end || b.begin >= a.end) continue;
      const bool same = a.stage == b.stage && a.step == b.step && a.op == b.op;
      if (same && (a.rank == b.rank || a.internal || b.internal)) continue;
      if (graph.before(a.until, b.after) || graph.before(b.until, a.after)) continue;
      return fmt::format(
          "operation {} of step {} on rank {} of stage {} and operation {} of step {} on rank {} of "
          "stage {}",
          a.op, a.step, a.rank, a.stage, b.op, b.step, b.rank, b.stage);
    }
  }
  return {};
}

std::string find_race(const Stages& stages) {
  const Graph graph(stages);
  if (!graph.deadlock().empty()) return graph.deadlock();
  const int ranks = simulated_mesh(*stages.front()).size(GroupId::kStage);
  std::vector<std::vector<RecordedAccess>> memory(stages.size() * static_cast<std::size_t>(ranks));
  for (int s = 0; s < static_cast<int>(stages.size()); ++s) {
    if (const std::string missing = Search(stages, s, graph, memory).record_all(); !missing.empty()) return missing;
  }
  for (const auto& accesses : memory) {
    if (const std::string race = compare(accesses, graph); !race.empty()) return race;
  }
  return {};
}

}  // namespace

std::string find_race(const Plan& plan) { return find_race(Stages{&plan}); }

std::string find_race(const std::vector<Plan>& stages) {
  Stages all;
  for (const Plan& stage : stages) all.push_back(&stage);
  return find_race(all);
}

std::vector<std::set<GroupId>> narrowest_groups(const Plan& plan) {
  const Stages stages{&plan};
  const Graph graph(stages);
  std::vector<std::vector<RecordedAccess>> memory(static_cast<std::size_t>(simulated_mesh(plan).size(GroupId::kStage)));
  Search search(stages, 0, graph, memory);
  search.record_all();
  return search.narrowest_groups();
}

}  // namespace aliquot::testing
