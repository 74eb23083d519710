#include "tests/engine/plan/brute_force.h"

#include <fmt/format.h>
#include <map>
#include <utility>
#include <vector>

namespace aliquot::testing {
namespace {

constexpr int kSteps = 3;
constexpr int64_t kSpace = int64_t{1} << 40, kPointers = int64_t{1} << 50, kDecision = int64_t{1} << 51;

/// Points of an operation on a rank: it starts, all ranks have started it (collectives), it has ended.
enum Point { kStart, kMeet, kEnd };

/// All points in an order that every edge follows, with the set of points that come before each.
class Graph {
 public:
  explicit Graph(const Plan& plan)
      : plan_(plan),
        ranks_(plan.topology.rank_count()),
        count_(static_cast<int>(plan.schedule.operations.size())),
        words_((static_cast<std::size_t>(kSteps * count_ * 3 * ranks_) + 63) / 64),
        before_(static_cast<std::size_t>(kSteps * count_ * 3 * ranks_) * words_, 0) {
    std::vector<int> lane_end(static_cast<std::size_t>(ranks_) * kLaneCount, -1);
    for (int step = 0; step < kSteps; ++step) {
      for (int op = 0; op < count_; ++op) {
        for (int r = 0; r < ranks_; ++r) start(step, op, r, lane_end);
        for (int r = 0; r < ranks_; ++r) {
          for (int q = 0; q < ranks_; ++q) {
            if (q == r || meets(op)) edge(at(step, op, kStart, q), at(step, op, kMeet, r));
          }
          edge(at(step, op, kMeet, r), at(step, op, kEnd, r));
        }
      }
    }
  }

  int at(int step, int op, Point point, int rank) const { return ((step * count_ + op) * 3 + point) * ranks_ + rank; }
  bool before(int a, int b) const {
    return (before_[static_cast<std::size_t>(b) * words_ + static_cast<std::size_t>(a) / 64] >> (a % 64)) & 1;
  }

 private:
  bool meets(int op) const {
    const Operation& operation = plan_.schedule.operations[op];
    switch (operation.verb) {
      case Verb::kGather:
        if (plan_.policy.quantize_weights && plan_.topology.node_count() == ranks_) return false;
        return !plan_.schedule.view && !plan_.model.units[operation.operand].parameters.empty();
      case Verb::kGatherQuantizedShards:
        return plan_.topology.node_count() > 1 && !plan_.model.units[operation.operand].parameters.empty();
      case Verb::kReduce:
      case Verb::kAllGatherGradients:
      case Verb::kNorm:
      case Verb::kGatherMatrices:
      case Verb::kScatterMatrices:
      case Verb::kAllGatherParameters: return true;
      default: return false;
    }
  }
  void start(int step, int op, int rank, std::vector<int>& lane_end) {
    const Operation& operation = plan_.schedule.operations[op];
    int& last = lane_end[static_cast<std::size_t>(rank * kLaneCount + static_cast<int>(operation.lane))];
    if (last >= 0) edge(last, at(step, op, kStart, rank));
    for (const Wait& wait : operation.after) {
      const int of = step - (wait.of_previous_step ? 1 : 0);
      for (int q = 0; q < ranks_ && of >= 0; ++q) {
        if (q == rank || wait.on_all) edge(at(of, wait.operation, kEnd, q), at(step, op, kStart, rank));
      }
    }
    last = at(step, op, kEnd, rank);
  }
  void edge(int from, int to) {
    uint64_t* into = &before_[static_cast<std::size_t>(to) * words_];
    const uint64_t* more = &before_[static_cast<std::size_t>(from) * words_];
    for (std::size_t w = 0; w < words_; ++w) into[w] |= more[w];
    into[from / 64] |= uint64_t{1} << (from % 64);
  }

  const Plan& plan_;
  int ranks_, count_;
  std::size_t words_;
  std::vector<uint64_t> before_;
};

struct AccessMode {
  int step, op, rank;  // who
  int64_t begin, end;  // which bytes of the memory it is listed under
  bool writes;
  int after, until;  // points
  bool internal;     // relays between a node's ranks: the communicator's business within one operation
};

class Search {
 public:
  explicit Search(const Plan& plan)
      : plan_(plan),
        graph_(plan),
        ranks_(plan.topology.rank_count()),
        stage_(plan.schedule.zero_stage),
        several_nodes_(!plan.topology.one_node()),
        in_place_(stage_ <= 1 && !plan.schedule.accumulate_into_shard && plan.policy.replica_count == 1),
        gathered_(plan.model.units.size(), 0),
        memory_(static_cast<std::size_t>(ranks_)) {}

  std::string find() {
    for (step_ = 0; step_ < kSteps; ++step_) {
      reduced_.assign(plan_.model.units.size(), 0);
      for (op_ = 0; op_ < static_cast<int>(plan_.schedule.operations.size()); ++op_) {
        if (operation().verb == Verb::kGather) ++gathered_[operation().operand];
        for (rank_ = 0; rank_ < ranks_; ++rank_) touch_all();
        if (operation().verb == Verb::kReduce) ++reduced_[operation().operand];
      }
    }
    for (int m = 0; m < ranks_ && found_.empty(); ++m) compare(m);
    return found_;
  }

 private:
  const Operation& operation() const { return plan_.schedule.operations[op_]; }

  const PlannedBuffer* buffer(Role role, int32_t flat) {
    const PlannedBuffer* found = nullptr;
    for (const PlannedBuffer& b : plan_.schedule.buffers) {
      const bool alive = b.always || (b.first <= op_ && op_ <= b.last);
      if (b.role == role && b.flat == flat && alive && (!found || b.first > found->first)) found = &b;
    }
    if (!found) found_ = fmt::format("operation {} touches what has no place", op_);
    return found;
  }

  /// Bytes [part, part + parts) of `of` equal parts of a buffer in `memory`.
  struct Parts {
    int first = 0, count = 1, of = 1;
  };
  void touch(int memory, Role role, int32_t flat, Parts parts, bool writes, Point after, bool internal = false,
             Point until = kEnd) {
    const PlannedBuffer* b = buffer(role, flat);
    if (!b || b->size_bytes == 0) return;
    const int64_t base = b->offset_bytes + kSpace * static_cast<int64_t>(b->space);
    const int64_t part = b->size_bytes / parts.of;
    note(memory, base + part * parts.first, base + part * (parts.first + parts.count), writes, after, internal, until);
  }
  void note(int memory, int64_t begin, int64_t end, bool writes, Point after, bool internal, Point until = kEnd) {
    memory_[memory].push_back({step_, op_, rank_, begin, end, writes, graph_.at(step_, op_, after, rank_),
                               graph_.at(step_, op_, until, rank_), internal});
  }
  void own(Role role, int32_t flat, bool writes, Point after = kStart) { touch(rank_, role, flat, {}, writes, after); }
  /// The parts of all ranks but the own, in the own memory.
  void write_others(Role role, int32_t flat) {
    touch(rank_, role, flat, {0, rank_, ranks_}, true, kMeet);
    touch(rank_, role, flat, {rank_ + 1, ranks_ - rank_ - 1, ranks_}, true, kMeet);
  }
  /// What a node's ranks hand on to one another.
  void relay(Role role, int32_t flat) {
    if (!several_nodes_) return;
    for (int q = 0; q < ranks_; ++q) {
      if (q != rank_) touch(q, role, flat, {}, false, kMeet, true);
    }
  }
  /// What the model's code follows from a gather to its release; the next gather makes another.
  void pointer(UnitId unit, bool writes) {
    const auto units = static_cast<int64_t>(plan_.model.units.size());
    const int64_t at = kPointers + gathered_[unit] * units + unit;
    note(rank_, at, at + 1, writes, kStart, false);
  }

  void touch_all() {
    for (const PlannedBuffer& b : plan_.schedule.buffers) {
      if (!b.always && b.first == op_ && b.size_bytes > 0) {
        const int64_t begin = b.offset_bytes + kSpace * static_cast<int64_t>(b.space);
        note(rank_, begin, begin + b.size_bytes, true, kStart, false, kStart);
      }
    }
    if (operation().verb == Verb::kNorm) return norm();
    if (is_model_code(operation().verb)) {
      activations();
      for (const UnitId unit : plan_.model.uses[operation().operand]) {
        pointer(unit, false);
        for_flats(unit, [&](int32_t f) { use(f); });
      }
      return;
    }
    if (belongs_to_matrix_group(operation().verb)) return group(plan_.matrix_groups[operation().operand]);
    if (operation().verb == Verb::kCopyIn || operation().verb == Verb::kCopyOut) return copy();
    const UnitId unit = operation().operand;
    if (operation().verb == Verb::kGather || operation().verb == Verb::kRelease) pointer(unit, true);
    for_flats(unit, [&](int32_t f) { touch_flat(f); });
  }

  void activations() {
    const ActivationSpec& spec = plan_.model.activations;
    if (spec.uses.empty()) return;
    const int32_t use = operation().operand;
    const bool back = operation().verb == Verb::kBackward;
    if (spec.uses[use].scratch_bytes > 0) own(Role::kScratch, use, true);
    if (spec.uses[use].kept_bytes > 0) own(Role::kSavedActivations, use, !back);
    const bool first = operation().verb == Verb::kForward;
    if (spec.uses[use].output_bytes > 0 && (first || spec.uses[use].output_in_backward))
      own(Role::kOutputActivations, use, !back);
    if (use > 0 && spec.uses[use - 1].output_bytes > 0 && (!back || spec.uses[use].input_in_backward))
      own(Role::kOutputActivations, use - 1, false);
    if (back && spec.backward_bytes > 0) own(Role::kActivationGradients, -1, true);
  }

  template <typename Visit>
  void for_flats(UnitId unit, Visit visit) {
    for (std::size_t f = 0; f < plan_.flats.size(); ++f) {
      if (plan_.flats[f].unit == unit) visit(static_cast<int32_t>(f));
    }
  }

  void use(int32_t f) {
    const bool whole_here = stage_ < 3;
    if (whole_here) {
      own(Role::kParameters, f, false);
    } else if (plan_.schedule.view) {
      for (int q = 0; q < ranks_; ++q) touch(q, Role::kParameters, f, {}, false, kStart);
    } else {
      own(Role::kGathered, f, false);
    }
    if (operation().verb == Verb::kBackward && plan_.flats[f].trainable) own(Role::kGradients, f, true);
  }

  void norm() {
    for (std::size_t f = 0; f < plan_.flats.size(); ++f) {
      if (plan_.flats[f].trainable) own(Role::kBlockSquares, static_cast<int32_t>(f), false);
    }
    for (int q = 0; q < ranks_; ++q) {
      if (q != rank_) touch(q, Role::kNormParts, -1, {q, 1, ranks_}, false, kMeet, true);
    }
    touch(rank_, Role::kNormParts, -1, {0, rank_, ranks_}, true, kMeet);
    touch(rank_, Role::kNormParts, -1, {rank_ + 1, ranks_ - rank_ - 1, ranks_}, true, kMeet);
    note(rank_, kDecision, kDecision + 1, true, kStart, false);
  }

  void touch_flat(int32_t f) {
    const Verb verb = operation().verb;
    if (verb == Verb::kGatherQuantizedShards) refresh(f);
    if (verb == Verb::kGather && plan_.policy.quantize_weights) return gather_quantized(f);
    if (verb == Verb::kGather && !plan_.schedule.view) {
      const Role shard = plan_.policy.offload_parameters == Offload::kNone || plan_.flats[f].layout.flat_count() == 0
                             ? Role::kParameters
                             : Role::kStagedShard;
      for (int q = 0; q < ranks_; ++q) touch(q, shard, f, {}, false, kMeet);
      own(Role::kGathered, f, true);
      relay(Role::kGathered, f);
    }
    const bool looks = verb == Verb::kRelease || (verb == Verb::kGather && plan_.schedule.view);
    if (looks) use(f);  // the model may, from a view's making to its release
    if (!plan_.flats[f].trainable) return;
    if (verb == Verb::kReduce) reduce(f);
    if (verb == Verb::kReplicaAllReduce) exchange(f);
    if (verb == Verb::kAllGatherGradients) spread(f);
    if (verb == Verb::kUpdate) update(f);
    if (verb == Verb::kAllGatherParameters) {
      for (int q = 0; q < ranks_; ++q) touch(q, Role::kParameters, f, {q, 1, ranks_}, false, kMeet);
      write_others(Role::kParameters, f);
      relay(Role::kParameters, f);
    }
  }

  int nodes() const { return plan_.topology.node_count(); }
  int node(int rank) const { return plan_.topology.node_of_rank[rank]; }
  int place(int rank) const { return rank % (ranks_ / nodes()); }

  void refresh(int32_t f) {
    own(Role::kParameters, f, false);
    // Encoded before this rank says that it has come.
    touch(rank_, Role::kQuantizedShards, f, {node(rank_), 1, nodes()}, true, kStart, false, kStart);
    for (int q = 0; q < ranks_; ++q) {
      if (q == rank_ || place(q) != place(rank_)) continue;
      touch(q, Role::kQuantizedShards, f, {node(q), 1, nodes()}, false, kMeet);
      touch(rank_, Role::kQuantizedShards, f, {node(q), 1, nodes()}, true, kMeet);
    }
  }

  void gather_quantized(int32_t f) {
    const bool met = nodes() < ranks_;
    for (int q = 0; q < ranks_; ++q) {
      if (node(q) == node(rank_)) touch(q, Role::kQuantizedShards, f, {}, false, met ? kMeet : kStart);
    }
    if (met) own(Role::kQuantizedParameters, f, true);
    own(Role::kGathered, f, true);
  }

  /// What is encoded between the two meetings of a reduce is read after the second, which the graph does not know.
  void reduce_between_nodes(int32_t f) {
    const bool met = nodes() < ranks_;
    if (met) own(Role::kNodePartialSums, f, true, kMeet);
    own(Role::kFp32Sums, f, true);
    own(Role::kErrorFeedbackResidual, f, true);
    own(Role::kQuantizedSums, f, true);
    own(Role::kQuantizedReceived, f, true);
    for (int q = 0; q < ranks_; ++q) {
      if (q != rank_ && place(q) == place(rank_))
        touch(q, Role::kQuantizedSums, f, {node(rank_), 1, nodes()}, false, kMeet, true);
    }
  }

  /// Of one unit, or of all units of a group.
  void copy() {
    const bool in = operation().verb == Verb::kCopyIn;
    const std::pair<Role, Role> homes[] = {{Role::kStagedShard, Role::kOffloadedParameters},
                                           {Role::kParameters, Role::kOffloadedParameters},
                                           {Role::kMaster, Role::kOffloadedMaster},
                                           {Role::kOptimizer, Role::kOffloadedOptimizer}};
    for (const auto& [slot, home] : homes) {
      for (const PlannedBuffer& b : plan_.schedule.buffers) {
        if (b.role != slot || b.always || (in ? b.first : b.last) != op_) continue;
        own(home, b.flat, !in);
        own(slot, b.flat, in);
      }
    }
  }

  void reduce(int32_t f) {
    const bool cast = plan_.policy.precision.sent() != plan_.policy.precision.gradients;
    if (cast) {
      own(Role::kGradients, f, false);
      // Before this rank says that it has come; kMeet is when all have, and this rank's own start is what others wait for.
      touch(rank_, Role::kSentGradients, f, {}, true, kStart, false, kStart);
    }
    const Role sent = cast ? Role::kSentGradients : Role::kGradients;
    if (plan_.policy.quantize_gradients && several_nodes_ && plan_.policy.replica_count == 1) {
      for (int q = 0; q < ranks_; ++q) {
        for (int n = 0; n < nodes() && node(q) == node(rank_); ++n)
          touch(q, sent, f, {n * (ranks_ / nodes()) + place(rank_), 1, ranks_}, false, q == rank_ ? kStart : kMeet);
      }
      reduce_between_nodes(f);
    } else {
      for (int q = 0; q < ranks_; ++q) touch(q, sent, f, {rank_, 1, ranks_}, false, kMeet);
      if (several_nodes_) stage(Role::kReduceStaging);
    }
    add_up(f);
    for (const PlannedBuffer& b : plan_.schedule.buffers) {
      if (plan_.policy.replica_count == 1 && b.role == Role::kBlockSquares && b.flat == f && b.first <= op_ &&
          op_ <= b.last)
        own(Role::kBlockSquares, f, true);
    }
  }

  /// Nodes of hosts write their staging if a flat that is reduced has elements.
  void stage(Role role) {
    const auto reduced = [](const FlatSpec& flat) { return flat.trainable && flat.layout.flat_count() > 0; };
    if (!plan_.world.has_gpus() && std::ranges::any_of(plan_.flats, reduced)) own(role, -1, true, kMeet);
  }

  void add_up(int32_t f) {
    const int before = reduced_[plan_.flats[f].unit];
    if (plan_.policy.reproducible && plan_.policy.micro_batch_count > 1) {
      int level = 0;  // a binary number is counted up: as many sums close as it ends in ones
      for (; (before >> level) & 1; ++level) own(tree_level_role(level), f, false);
      if (level > 0) own(Role::kMicroBatchSum, f, true);
      own(before + 1 == plan_.policy.micro_batch_count ? Role::kReducedGradients : tree_level_role(level), f, true);
    } else if (in_place_) {
      touch(rank_, Role::kGradients, f, {rank_, 1, ranks_}, true, kMeet);
    } else {
      own(plan_.policy.replica_count > 1 ? Role::kReplicaPartialSums : Role::kReducedGradients, f, true);
      if (before > 0) own(Role::kMicroBatchSum, f, true);
    }
  }

  /// What peers of other replicas do is over when it is.
  void exchange(int32_t f) {
    own(Role::kReplicaPartialSums, f, false);
    bool cross = false;  // nodes, by the peers of any shard
    for (int r = 0; r < plan_.world.rank_count(); ++r)
      cross = cross || plan_.world.node_of_rank[r] != plan_.world.node_of_rank[r % ranks_];
    if (cross && !plan_.policy.quantize_gradients) stage(Role::kExchangeStaging);
    if (plan_.policy.quantize_gradients && !plan_.world.one_node()) {
      for (const Role role :
           {Role::kErrorFeedbackResidual, Role::kQuantizedSums, Role::kQuantizedReceived, Role::kFp32Sums})
        own(role, f, true);
    }
    own(Role::kReducedGradients, f, true);
    own(Role::kBlockSquares, f, true);
  }

  void spread(int32_t f) {
    for (int q = 0; q < ranks_; ++q) {
      if (in_place_) {
        touch(q, Role::kGradients, f, {q, 1, ranks_}, false, kMeet);
      } else {
        touch(q, Role::kReducedGradients, f, {}, false, kMeet);
      }
    }
    if (in_place_) {
      write_others(Role::kGradients, f);
    } else {
      own(Role::kGradients, f, true, kMeet);
    }
    relay(Role::kGradients, f);
  }

  void update(int32_t f) {
    if (!plan_.policy.update_in_backward) note(rank_, kDecision, kDecision + 1, false, kStart, false);
    if (plan_.flats[f].matrices) {
      own(Role::kMuonDirections, f, false);
    } else {
      gradient(f);
      if (plan_.policy.state_bytes_per_block > 0) own(Role::kOptimizer, f, true);
    }
    if (plan_.policy.precision.compute != DType::kFloat32) own(Role::kMaster, f, true);
    const bool rounds =
        plan_.policy.quantize_gradients && (plan_.policy.replica_count > 1 ? !plan_.world.one_node() : several_nodes_);
    if (rounds && !plan_.policy.update_in_backward) own(Role::kErrorFeedbackResidual, f, true);  // of a skipped step
    touch(rank_, Role::kParameters, f, own_part(), true, kStart);
  }

  Parts own_part() const { return stage_ == 3 || stage_ == 0 ? Parts{} : Parts{rank_, 1, ranks_}; }

  void gradient(int32_t f) {
    if (stage_ == 0 || in_place_) {
      touch(rank_, Role::kGradients, f, own_part(), false, kStart);
    } else {
      own(Role::kReducedGradients, f, false);
    }
  }

  void group(const MatrixGroup& what) {
    const Verb verb = operation().verb;
    if (verb == Verb::kMuonMomentum) {
      note(rank_, kDecision, kDecision + 1, false, kStart, false);
      for (const int32_t f : what.flats) {
        gradient(f);
        own(Role::kOptimizer, f, true);
        own(Role::kMuonDirections, f, true);
      }
    }
    if (verb == Verb::kOrthogonalize) own(Role::kOrthogonalizeScratch, operation().operand, true);
    if (verb == Verb::kMuonMomentum) return;
    to_other_operations(what);
    for (const OwnedMatrix& matrix : what.matrices) what.in_place ? in_its_place(matrix) : between_shards(matrix);
  }

  /// To them it is whole buffers, whoever owns what; which ranges, matters within the operation alone.
  void to_other_operations(const MatrixGroup& what) {
    const Verb verb = operation().verb;
    const int32_t group = operation().operand;
    const Point after = verb == Verb::kOrthogonalize ? kStart : kMeet;
    const bool blended = what.in_place || verb != Verb::kOrthogonalize;
    for (const int32_t f : what.flats) {
      if (blended) touch(rank_, Role::kMuonDirections, f, {}, verb != Verb::kGatherMatrices, after, true);
      for (int q = 0;
           q < ranks_ && (verb == Verb::kGatherMatrices || (verb == Verb::kScatterMatrices && what.in_place)); ++q)
        touch(q, Role::kMuonDirections, f, {}, false, after, true);
    }
    if (what.in_place) return;
    touch(rank_, Role::kOwnedMatrices, group, {}, verb != Verb::kScatterMatrices, after, true);
    for (int q = 0; q < ranks_ && verb == Verb::kScatterMatrices; ++q)
      touch(q, Role::kOwnedMatrices, group, {}, false, after, true);
  }

  /// Bytes [begin, end) of the buffer, in `memory`.
  void range(int memory, Role role, int32_t whose, std::pair<int64_t, int64_t> bytes, bool writes) {
    const PlannedBuffer* b = buffer(role, whose);
    if (!b) return;
    const int64_t base = b->offset_bytes + kSpace * static_cast<int64_t>(b->space);
    const Point after = operation().verb == Verb::kOrthogonalize ? kStart : kMeet;
    note(memory, base + bytes.first, base + bytes.second, writes, after, false);
  }

  void in_its_place(const OwnedMatrix& matrix) {
    const int64_t begin = plan_.flats[matrix.flat].layout.tensor_offset(matrix.tensor) * 4;
    const std::pair<int64_t, int64_t> bytes{begin, begin + matrix.size_bytes()};
    const bool owned = matrix.owner == rank_;
    if (operation().verb == Verb::kOrthogonalize) {
      if (owned) range(rank_, Role::kMuonDirections, matrix.flat, bytes, true);
    } else if (!owned) {
      range(matrix.owner, Role::kMuonDirections, matrix.flat, bytes, false);
      range(rank_, Role::kMuonDirections, matrix.flat, bytes, true);
    }
  }

  void between_shards(const OwnedMatrix& matrix) {
    const bool owned = matrix.owner == rank_;
    const int32_t group = operation().operand;
    if (operation().verb == Verb::kOrthogonalize) {
      if (owned)
        range(rank_, Role::kOwnedMatrices, group, {matrix.offset_bytes, matrix.offset_bytes + matrix.size_bytes()},
              true);
      return;
    }
    for (int q = 0; q < ranks_; ++q) {
      for (const Piece& piece : plan_.flats[matrix.flat].layout.pieces(q)) {
        if (piece.tensor != matrix.tensor) continue;
        const std::pair<int64_t, int64_t> in_shard{piece.shard_offset * 4, (piece.shard_offset + piece.count) * 4};
        const int64_t at = matrix.offset_bytes + piece.tensor_offset * 4;
        const std::pair<int64_t, int64_t> in_whole{at, at + piece.count * 4};
        if (operation().verb == Verb::kGatherMatrices && owned) {
          range(q, Role::kMuonDirections, matrix.flat, in_shard, false);
          range(rank_, Role::kOwnedMatrices, group, in_whole, true);
        }
        if (operation().verb == Verb::kScatterMatrices && q == rank_) {
          range(matrix.owner, Role::kOwnedMatrices, group, in_whole, false);
          range(rank_, Role::kMuonDirections, matrix.flat, in_shard, true);
        }
      }
    }
  }

  void compare(int memory) {
    const auto& touches = memory_[memory];
    for (std::size_t i = 0; i < touches.size(); ++i) {
      for (std::size_t j = i + 1; j < touches.size(); ++j) {
        const AccessMode &a = touches[i], &b = touches[j];
        if (!(a.writes || b.writes) || a.begin >= b.end || b.begin >= a.end) continue;
        const bool same = a.step == b.step && a.op == b.op;
        if (same && (a.rank == b.rank || a.internal || b.internal)) continue;
        if (graph_.before(a.until, b.after) || graph_.before(b.until, a.after)) continue;
        found_ = fmt::format("operation {} of step {} on rank {} and operation {} of step {} on rank {}, memory of {}",
                             a.op, a.step, a.rank, b.op, b.step, b.rank, memory);
        return;
      }
    }
  }

  const Plan& plan_;
  Graph graph_;
  int ranks_, stage_;
  bool several_nodes_, in_place_;
  int step_ = 0, op_ = 0, rank_ = 0;
  std::vector<int> reduced_;                     // by unit, in this step
  std::vector<int> gathered_;                    // by unit, in all
  std::vector<std::vector<AccessMode>> memory_;  // by the rank that owns it
  std::string found_;
};

}  // namespace

std::string find_race(const Plan& plan) { return Search(plan).find(); }

}  // namespace aliquot::testing
