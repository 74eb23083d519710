#include "engine/simulate.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "engine/accesses.h"
#include "engine/crossings.h"
#include "engine/order.h"
#include "kernels/error.h"

namespace aliquot {
namespace {

/// What one operation takes, and moves.
struct Price {
  double seconds = 0;
  int64_t bytes = 0;           // sent, and received
  int64_t crossing_bytes = 0;  // sent by a node to others
};

/// Whom a collective goes round.
struct Reach {
  explicit Reach(const Topology& topology)
      : rank_count(topology.rank_count()), least_on_a_node(rank_count), one_node(topology.one_node()) {
    std::vector<int> ranks_of_node(static_cast<std::size_t>(topology.node_count()), 0);
    for (const int node : topology.node_of_rank) ++ranks_of_node[node];
    for (const int count : ranks_of_node) least_on_a_node = std::min(least_on_a_node, count);
  }
  int rank_count, least_on_a_node;
  bool one_node;
};

class Pricing {
 public:
  Pricing(const Plan& plan, const CostModel& cost)
      : plan_(plan),
        cost_(cost),
        replica_(plan.topology),
        world_(plan.world),
        crossings_(plan.world, plan.policy.replica_count),
        copies_(copied_slots(plan.schedule)) {
    if (!cost.uses.empty() && cost.uses.size() != plan.model.uses.size()) {
      throw UsageError(
          fmt::format("{} uses are priced, but the model declares {}", cost.uses.size(), plan.model.uses.size()));
    }
  }

  /// In the order of issue.
  Price next(OperationId id) {
    const Operation& operation = plan_.schedule.operations[id];
    switch (operation.verb) {
      case Verb::kForward:
      case Verb::kRecompute:
      case Verb::kBackward: return {model_code(operation), 0};
      case Verb::kRelease: return {};
      case Verb::kGather: return plan_.schedule.view ? Price{} : of_flats(operation.place, false, precision().compute);
      case Verb::kSpread: return of_flats(operation.place, true, precision().gradients);
      case Verb::kPublish: return of_flats(operation.place, true, precision().compute);
      case Verb::kReduce: return reduce(operation);
      case Verb::kExchange: return exchange(operation.place);
      case Verb::kNorm: return norm();
      case Verb::kBlend: return {blend(operation.place), 0};
      case Verb::kCollect:
      case Verb::kScatter: return pass_matrices(operation.place);
      case Verb::kOrthogonalize:  // a multiply-add is two
        return {2 * plan_.matrix_groups[operation.place].work / cost_.matrix_flops_per_second, 0};
      case Verb::kUpdate: return {update(operation.place), 0};
      case Verb::kCopyIn:
      case Verb::kCopyOut: return {copy(id), 0};
    }
    return {};
  }

 private:
  double model_code(const Operation& operation) const {
    const bool forward = operation.verb != Verb::kBackward;
    if (!cost_.uses.empty()) {
      const UseCost& use = cost_.uses[operation.place];
      return forward ? use.forward_seconds : use.backward_seconds;
    }
    double elements = 0;
    for (const UnitId unit : plan_.model.uses[operation.place]) {
      for (const int32_t f : plan_.flats_of_unit[unit]) {
        elements += static_cast<double>(plan_.flats[f].layout.element_count());
      }
    }
    return elements * cost_.samples_per_micro_batch * (forward ? 2 : 4) / cost_.flops_per_second;
  }

  /// All ranks' parts to, or from, all ranks: what comes from other nodes comes once to each node, then goes round in it.
  Price collective(int64_t part_bytes, const Reach& reach) const {
    if (reach.rank_count == 1) return {};
    const auto part = static_cast<double>(part_bytes);
    double seconds =
        cost_.inside_node.latency_seconds + part * (reach.rank_count - 1) / cost_.inside_node.bytes_per_second;
    if (!reach.one_node) {
      seconds += cost_.between_nodes.latency_seconds +
                 part * (reach.rank_count - reach.least_on_a_node) / cost_.between_nodes.bytes_per_second;
    }
    return {seconds, part_bytes * (reach.rank_count - 1)};
  }

  Price of_flats(UnitId unit, bool trainable_only, DType dtype) const {
    Price sum;
    for (const int32_t f : plan_.flats_of_unit[unit]) {
      if (trainable_only && !plan_.flats[f].trainable) continue;
      const Price one = collective(shard_bytes(plan_.flats[f], dtype), replica_);
      sum.seconds += one.seconds;
      sum.bytes += one.bytes;
      for (const Meeting& of : crossings_.replicas)
        sum.crossing_bytes += of.gathered_bytes(shard_bytes(plan_.flats[f], dtype));
    }
    return sum;
  }

  Price reduce(const Operation& operation) {
    const UnitId unit = operation.place;
    Price price = of_flats(unit, true, precision().sent());
    reduced_.resize(plan_.model.units.size(), false);
    const bool levels = plan_.schedule.sums_in_levels;
    const int additions = levels ? closed_levels(operation.micro_batch) : reduced_[unit] ? 1 : 0;
    price.crossing_bytes = 0;
    int64_t copied = 0;
    for (const int32_t f : plan_.flats_of_unit[unit]) {
      if (!plan_.flats[f].trainable) continue;
      for (const Meeting& of : crossings_.replicas)
        price.crossing_bytes += of.reduced_bytes(plan_.flats[f].layout.shard_count(), precision().sent());
      // Two read and one written, a byte.
      copied += 3 * additions * shard_bytes(plan_.flats[f], levels ? DType::kFloat32 : precision().gradients);
      if (precision().sent() == precision().gradients) continue;
      const int64_t whole = plan_.flats[f].layout.flat_count();
      copied += whole * (element_bytes(precision().gradients) + element_bytes(precision().sent()));
    }
    reduced_[unit] = true;
    price.seconds += static_cast<double>(copied) / cost_.copy_bytes_per_second;
    return price;
  }

  double copy(OperationId id) const {
    double seconds = 0;
    for (const BufferId b : copies_[id]) {
      const PlannedBuffer& slot = plan_.schedule.buffers[b];
      const bool parameters = home_of(slot.role) == Role::kParametersHome;
      const Offload to = parameters ? plan_.policy.offload_parameters : plan_.policy.offload_state;
      const double rate = to == Offload::kDisk ? cost_.disk_bytes_per_second : cost_.host_bytes_per_second;
      seconds += static_cast<double>(slot.size_bytes) / rate;
    }
    return seconds;
  }

  /// Of each shard a sum over the peers, of which each makes a part that all then get.
  Price exchange(UnitId unit) const {
    Price sum;
    const int peers = plan_.policy.replica_count;
    const LinkCost& link = plan_.world.one_node() ? cost_.inside_node : cost_.between_nodes;
    for (const int32_t f : plan_.flats_of_unit[unit]) {
      if (!plan_.flats[f].trainable) continue;
      const int64_t part_count = plan_.flats[f].layout.shard_count() / peers;
      const int64_t gathered_bytes =
          part_count * element_bytes(precision().gradients) + needed_bytes(plan_, Role::kSquares, f) / peers;
      const int64_t bytes = (part_count * element_bytes(DType::kFloat32) + gathered_bytes) * (peers - 1);
      int64_t crossing_bytes = 0;
      for (const Meeting& of : crossings_.peers)
        crossing_bytes += of.reduced_bytes(part_count, DType::kFloat32) + of.gathered_bytes(gathered_bytes);
      // A node's ranks meet their peers at once, over one link.
      const int64_t carried_bytes = plan_.world.one_node() ? bytes : crossing_bytes;
      sum.seconds += 3 * link.latency_seconds + static_cast<double>(carried_bytes) / link.bytes_per_second;
      sum.bytes += bytes;
      sum.crossing_bytes += crossing_bytes;
    }
    return sum;
  }

  /// Within the replica; and of all ranks a word on whether one abandons the step.
  Price norm() const {
    Price price = collective(norm_part_bytes(plan_.flats), replica_);
    for (const Meeting& of : crossings_.replicas)
      price.crossing_bytes += of.gathered_bytes(norm_part_bytes(plan_.flats));
    if (plan_.policy.replica_count > 1)
      price.seconds += (world_.one_node ? cost_.inside_node : cost_.between_nodes).latency_seconds;
    return price;
  }

  /// A rank sends its shards of the matrices and receives those that it owns, or the other way round; where it has all of
  /// them, what others made of theirs. The more of the two is what takes time.
  Price pass_matrices(int32_t group) const {
    if (replica_.rank_count == 1) return {};
    const MatrixGroup& what = plan_.matrix_groups[group];
    int64_t all = 0;
    for (const OwnedMatrix& matrix : what.matrices) all += matrix.size_bytes();
    const double ranks = replica_.rank_count, on_a_node = replica_.least_on_a_node;
    const double share = static_cast<double>(all) / ranks;
    const double received =
        what.in_place ? static_cast<double>(all) : std::max(share, static_cast<double>(what.held_bytes));
    double seconds =
        cost_.inside_node.latency_seconds + received * (ranks - 1) / ranks / cost_.inside_node.bytes_per_second;
    // A link between nodes carries what all ranks of a node are sent from elsewhere.
    if (!replica_.one_node)
      seconds += cost_.between_nodes.latency_seconds +
                 received * on_a_node * (ranks - on_a_node) / ranks / cost_.between_nodes.bytes_per_second;
    return {seconds, static_cast<int64_t>((what.in_place ? static_cast<double>(all) : share) * (ranks - 1) / ranks)};
  }

  double blend(int32_t group) const {
    double elements = 0;
    for (const int32_t f : plan_.matrix_groups[group].flats) elements += static_cast<double>(plan_.updated_count(f));
    return 0.5 * elements * cost_.update_seconds_per_element;
  }

  double update(UnitId unit) const {
    double elements = 0;
    for (const int32_t f : plan_.flats_of_unit[unit]) {
      if (!plan_.flats[f].trainable) continue;
      // Of a matrix half was done by the blend: each moves about half the bytes that AdamW does.
      elements += static_cast<double>(plan_.updated_count(f)) * (plan_.flats[f].matrices ? 0.5 : 1);
    }
    return elements * cost_.update_seconds_per_element;
  }

  const Precision& precision() const { return plan_.policy.precision; }

  const Plan& plan_;
  const CostModel& cost_;
  Reach replica_, world_;
  Crossings crossings_;
  std::vector<bool> reduced_;                  // by unit, in this step
  std::vector<std::vector<BufferId>> copies_;  // by operation
};

/// Steps one after the other, until nothing of the first one's start is left.
class Clockwork {
 public:
  static constexpr int kSteps = 4;
  Clockwork(const Plan& plan, const CostModel& cost)
      : operations_(plan.schedule.operations), compute_issues_(cost.compute_issues) {
    Pricing pricing(plan, cost);
    for (OperationId id = 0; id < static_cast<OperationId>(operations_.size()); ++id)
      prices_.push_back(pricing.next(id));
    for (int step = 0; step < kSteps; ++step) run(step);
  }

  const std::vector<Price>& prices() const { return prices_; }
  const std::vector<TimeSpan>& spans(int step) const { return spans_[step]; }
  double compute_end(int step) const { return compute_end_[step]; }

 private:
  void run(int step) {
    auto& spans = spans_[step];
    spans.resize(operations_.size());
    for (std::size_t id = 0; id < operations_.size(); ++id) {
      const Operation& operation = operations_[id];
      const auto lane = static_cast<std::size_t>(operation.lane);
      double start = std::max(lane_free_[lane], issued_);
      for (const Wait& wait : operation.after) {
        const int of = step - (wait.of_previous_step ? 1 : 0);
        if (of >= 0) start = std::max(start, spans_[of][wait.operation].end_seconds);
      }
      spans[id] = {start, start + prices_[id].seconds};
      lane_free_[lane] = spans[id].end_seconds;
      // What is issued later starts later: after compute where that is the issuing thread, and after the norm, which
      // the host waits for to decide.
      const bool holds_issue = operation.verb == Verb::kNorm || (compute_issues_ && operation.lane == Lane::kCompute);
      if (holds_issue) issued_ = std::max(issued_, spans[id].end_seconds);
    }
    compute_end_[step] = lane_free_[static_cast<std::size_t>(Lane::kCompute)];
  }

  const std::vector<Operation>& operations_;
  bool compute_issues_;
  std::vector<Price> prices_;
  std::array<std::vector<TimeSpan>, kSteps> spans_;
  std::array<double, kSteps> compute_end_{};
  std::array<double, kLaneCount> lane_free_{};
  double issued_ = 0;
};

/// Seconds of `span` in which one of `busy`, which are in order and apart, runs.
double overlap(const TimeSpan& span, const std::vector<TimeSpan>& busy) {
  double seconds = 0;
  auto it = std::lower_bound(busy.begin(), busy.end(), span.start_seconds,
                             [](const TimeSpan& other, double at) { return other.end_seconds <= at; });
  for (; it != busy.end() && it->start_seconds < span.end_seconds; ++it) {
    seconds += std::min(span.end_seconds, it->end_seconds) - std::max(span.start_seconds, it->start_seconds);
  }
  return seconds;
}

}  // namespace

CostModel CostModel::typical_host() {
  CostModel cost;
  cost.inside_node = {2e10, 5e-6};
  cost.between_nodes = {1.1e9, 5e-5};
  cost.copy_bytes_per_second = 2e10;
  cost.host_bytes_per_second = 1e10;
  cost.update_seconds_per_element = 28 / 2e10;
  cost.flops_per_second = 2e11;
  return cost;
}

CostModel CostModel::typical_gpu() {
  CostModel cost;
  cost.inside_node = {3.5e11, 1e-5};
  cost.between_nodes = {4.5e10, 2e-5};
  cost.copy_bytes_per_second = 3e12;
  cost.host_bytes_per_second = 5e10;
  cost.update_seconds_per_element = 28 / 3e12;
  cost.flops_per_second = 4e14;
  cost.matrix_flops_per_second = 1e13;  // of plain fp32 kernels; never measured
  cost.compute_issues = false;
  return cost;
}

void add_up(const Plan& plan, const std::vector<TimeSpan>& busy, Timeline& timeline) {
  for (std::size_t id = 0; id < timeline.operations.size(); ++id) {
    const TimeSpan& span = timeline.operations[id];
    const Operation& operation = plan.schedule.operations[id];
    if (operation.lane == Lane::kCompute) timeline.compute_seconds += span.seconds();
    if (!communicates(plan, operation)) continue;
    timeline.communication_seconds += span.seconds();
    timeline.hidden_seconds += overlap(span, busy);
  }
}

Timeline simulate(const Plan& plan, const CostModel& cost) {
  const Clockwork clockwork(plan, cost);
  const auto& operations = plan.schedule.operations;
  constexpr int kStep = Clockwork::kSteps - 2;
  std::vector<TimeSpan> busy;  // what a collective may hide under, which may be the next step's forward
  for (int step = kStep - 1; step <= kStep + 1; ++step) {
    for (std::size_t id = 0; id < operations.size(); ++id) {
      const TimeSpan& span = clockwork.spans(step)[id];
      if (operations[id].lane == Lane::kCompute && span.seconds() > 0) busy.push_back(span);
    }
  }
  Timeline timeline;
  const double begin = clockwork.compute_end(kStep - 1);
  timeline.step_seconds = clockwork.compute_end(kStep) - begin;
  for (std::size_t id = 0; id < operations.size(); ++id) {
    const TimeSpan& span = clockwork.spans(kStep)[id];
    timeline.operations.push_back({span.start_seconds - begin, span.end_seconds - begin});
    timeline.sent_bytes += clockwork.prices()[id].bytes;
    timeline.received_bytes += clockwork.prices()[id].bytes;
    timeline.crossing_bytes += clockwork.prices()[id].crossing_bytes;
  }
  for (TimeSpan& span : busy) span = {span.start_seconds - begin, span.end_seconds - begin};
  add_up(plan, busy, timeline);
  return timeline;
}

}  // namespace aliquot
