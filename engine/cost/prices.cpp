#include "engine/cost/prices.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <fmt/format.h>

#include "engine/cost/link_prices.h"
#include "engine/plan/happens_before.h"
#include "engine/plan/reduce_recipe.h"
#include "engine/plan/sizes.h"
#include "engine/plan/use_collectives.h"
#include "kernels/elementwise/kernels.h"
#include "kernels/system/error.h"
#include "sharding/comm/communicator.h"

namespace aliquot {
namespace {

class Pricing {
 public:
  Pricing(const Plan& plan, const CostModel& cost)
      : plan_(plan),
        cost_(cost),
        links_(plan, cost),
        copies_(copied_slots(plan.schedule)),
        recipes_(reduce_recipes(plan)) {
    check_uses(plan.model, cost);
  }

  /// The duration of the repetitions of the sums of an operation: see RepeatedSums.
  double repetition_seconds(OperationId id) const {
    const Operation& operation = plan_.schedule.operations[id];
    if (operation.verb != Verb::kReduce && operation.verb != Verb::kReplicaAllReduce) return 0;
    Price sum;
    for (const int32_t f : plan_.flats_of_unit[operation.operand]) {
      if (!plan_.flats[f].trainable) continue;
      operation.verb == Verb::kReduce ? repeat_reduce(f, sum) : repeat_replica_all_reduce(f, sum);
    }
    return sum.seconds;
  }

  Price of(OperationId id) const {
    const Operation& operation = plan_.schedule.operations[id];
    switch (operation.verb) {
      case Verb::kForward:
      case Verb::kRecompute:
      case Verb::kBackward:
      case Verb::kBackwardInput:
      case Verb::kBackwardWeights: return {model_seconds(plan_.model, cost_, operation.operand, operation.verb), 0};
      case Verb::kSendActivations:
      case Verb::kReceiveActivations:
      case Verb::kSendGradients:
      case Verb::kReceiveGradients: return links_.transfer(transfer_bytes(plan_.model, operation), operation.group);
      case Verb::kUseCollective: return links_.use_collective(collective_of(plan_.model, operation));
      case Verb::kSumOverTensor: return sum_over_tensor(operation.operand);
      case Verb::kGatherQuantizedShards: return gather_quantized_shards(operation.operand);
      case Verb::kGather:
        if (plan_.policy.quantize_weights) return gather_quantized(operation.operand);
        return plan_.schedule.view ? Price{} : of_flats(operation.operand, false, precision().compute);
      case Verb::kAllGatherGradients: return of_flats(operation.operand, true, precision().gradients);
      case Verb::kAllGatherParameters: return all_gather_parameters(operation.operand);
      case Verb::kReduce: return reduce(operation.operand, recipes_[id]);
      case Verb::kReplicaAllReduce: return replica_all_reduce(operation.operand, recipes_[id].into);
      case Verb::kNorm: return norm();
      case Verb::kMuonMomentum: return {digest_factor() * muon_momentum(operation.operand), 0};
      case Verb::kGatherMatrices:
      case Verb::kScatterMatrices: return move_matrices(operation.operand);
      case Verb::kOrthogonalize:  // a multiply-add is two flops
        return {2 * plan_.matrix_groups[operation.operand].work / cost_.matrix_flops_per_second, 0};
      case Verb::kCompareState: return compare_state(operation.operand);
      case Verb::kDigestGradients: return digest_gradients(operation.operand);
      case Verb::kUpdate: return {digest_factor() * update(operation.operand), 0};
      case Verb::kCopyIn:
      case Verb::kCopyOut: return {copy(id), 0};
      default: break;
    }
    assert(info(operation.verb).actor == Actor::kNone);
    return {};
  }

 private:
  Price of_flats(UnitId unit, bool trainable_only, DType dtype) const {
    Price sum;
    for (const int32_t f : plan_.flats_of_unit[unit]) {
      if (trainable_only && !plan_.flats[f].trainable) continue;
      const int64_t part_bytes = shard_bytes(plan_.flats[f], dtype);
      add(sum, links_.collective(part_bytes, links_.inter_node_gather_bytes(part_bytes)));
    }
    return sum;
  }

  /// With Policy::check_state, the digests of the parameters of each flat buffer are all-gathered too.
  Price all_gather_parameters(UnitId unit) const {
    Price sum = of_flats(unit, true, precision().compute);
    for (const int32_t f : plan_.flats_of_unit[unit]) {
      if (!plan_.policy.check_state || !plan_.flats[f].trainable) continue;
      const int64_t part_bytes = plan_.flats[f].layout.shard_count() / kBlockElements * int64_t{sizeof(uint64_t)};
      add(sum, links_.collective(part_bytes, links_.inter_node_gather_bytes(part_bytes)));
    }
    return sum;
  }

  Price sum_over_tensor(UnitId unit) const {
    Price sum;
    for (const int32_t f : plan_.flats_of_unit[unit]) {
      if (!plan_.sums_over_tensor(f)) continue;
      const int64_t part_count = plan_.flats[f].layout.flat_count() / plan_.policy.tensor;
      add(sum, links_.tensor_collective(CollectiveKind::kSum, part_count, precision().gradients));
    }
    return sum;
  }

  Price gather_quantized_shards(UnitId unit) const {
    Price sum;
    for (const int32_t f : plan_.flats_of_unit[unit]) {
      const int64_t code = encoded_bytes(plan_.flats[f].layout.shard_count());
      add(sum, links_.memory_traffic(static_cast<double>(shard_bytes(plan_.flats[f], precision().compute) + code)));
      add(sum, links_.receive_from(links_.nodes() - 1, code, true));
    }
    return sum;
  }

  Price gather_quantized(UnitId unit) const {
    Price sum;
    for (const int32_t f : plan_.flats_of_unit[unit]) {
      const int64_t code = encoded_bytes(plan_.flats[f].layout.shard_count());
      add(sum, links_.receive_from(links_.ranks_per_node() - 1, links_.nodes() * code, false));
      add(sum, links_.memory_traffic(static_cast<double>(links_.replica().rank_count *
                                                         (code + shard_bytes(plan_.flats[f], precision().compute)))));
    }
    return sum;
  }

  /// The price of a reduce that sums gradients within the node, quantizes these sums, and adds them between nodes.
  Price reduce_quantized(const FlatSpec& flat, DType sent) const {
    const int64_t count = flat.layout.shard_count(), code = encoded_bytes(count);
    Price sum;
    if (links_.ranks_per_node() > 1) {
      const int64_t met = links_.nodes() * shard_bytes(flat, sent);
      add(sum, links_.receive_from(links_.ranks_per_node() - 1, met, false));
      add(sum, links_.memory_traffic(static_cast<double>(links_.ranks_per_node() * met + links_.nodes() * count * 4)));
    }
    add(sum, links_.receive_from(links_.nodes() - 1, code, true));
    // For each node, the loops access fp32 values three times: they read sums, and write and read decoded parts. They
    // access 8-bit codes five times: they read and write the residual, write sums, and write and read received parts.
    add(sum, links_.memory_traffic(static_cast<double>(links_.nodes() * (3 * 4 * count + 5 * code))));
    return sum;
  }

  Price reduce_scatter(const FlatSpec& flat, const ReduceRecipe& recipe) const {
    if (recipe.encoded) return reduce_quantized(flat, recipe.sent_dtype);
    int64_t crossing_bytes = 0;
    for (const GroupPlacement& of : links_.crossings().replicas)
      crossing_bytes += of.reduced_bytes(flat.layout.shard_count(), recipe.sent_dtype);
    return links_.collective(shard_bytes(flat, recipe.sent_dtype), crossing_bytes);
  }

  /// Returns the bytes that the additions of `into` read and write. An addition of two values reads both and writes
  /// their sum.
  static int64_t copied_bytes(const Accumulation& into, const FlatSpec& flat) {
    return 3 * into.additions * shard_bytes(flat, into.partial_dtype);
  }

  Price reduce(UnitId unit, const ReduceRecipe& recipe) const {
    Price price;
    int64_t copied = 0;
    for (const int32_t f : plan_.flats_of_unit[unit]) {
      if (!plan_.flats[f].trainable) continue;
      add(price, reduce_scatter(plan_.flats[f], recipe));
      copied += copied_bytes(recipe.into, plan_.flats[f]);
      if (!recipe.casts()) continue;
      const int64_t whole = plan_.flats[f].layout.flat_count();
      copied += whole * (element_bytes(recipe.gradient_dtype) + element_bytes(recipe.sent_dtype));
    }
    if (copied > 0) add(price, links_.move(static_cast<double>(copied) / cost_.copy_bytes_per_second, 0, false));
    return price;
  }

  double copy(OperationId id) const {
    double seconds = 0;
    for (const BufferId b : copies_[id]) {
      const PlannedBuffer& slot = plan_.schedule.buffers[b];
      const bool parameters = offloaded_role_of(slot.role) == Role::kOffloadedParameters;
      const Offload to = parameters ? plan_.policy.offload_parameters : plan_.policy.offload_state;
      const double rate = to == Offload::kDisk ? cost_.disk_bytes_per_second : cost_.host_bytes_per_second;
      seconds += static_cast<double>(slot.size_bytes) / rate;
    }
    return seconds;
  }

  /// Returns the price of an all-reduce over replicas with quantized sums. Each rank of the replicate group sends one
  /// quantized part to each other rank. It sums the parts that it receives, and sends the quantized sum to all.
  Price quantized_replica_all_reduce(UnitId unit) const {
    Price sum;
    const int peers = plan_.policy.replica_count;
    for (const int32_t f : plan_.flats_of_unit[unit]) {
      if (!plan_.flats[f].trainable) continue;
      const int64_t count = plan_.flats[f].layout.shard_count(), code = encoded_bytes(count / peers);
      int64_t crossing_bytes = 0;
      for (const GroupPlacement& of : links_.crossings().peers)
        crossing_bytes += code * of.ranks_on_node * (of.rank_count - of.ranks_on_node) + of.gathered_bytes(code);
      const double inside = 2 * (cost_.inside_node.latency_seconds +
                                 static_cast<double>(code * (peers - 1)) / cost_.inside_node.bytes_per_second);
      Price one = links_.move(inside, crossing_bytes, !links_.world().one_node, 2);
      one.bytes = 2 * code * (peers - 1);
      add(sum, one);
      add(sum, links_.memory_traffic(static_cast<double>(6 * 4 * count + 6 * peers * code)));
    }
    return sum;
  }

  /// Returns the price of an all-reduce of each shard over its replicate group: a reduce-scatter, then an all-gather.
  /// All replicate groups of a node use the node's link at the same time.
  Price replica_all_reduce(UnitId unit, const Accumulation& into) const {
    if (encodes_exchanges(plan_)) return quantized_replica_all_reduce(unit);
    Price sum;
    const int peers = plan_.policy.replica_count;
    for (const int32_t f : plan_.flats_of_unit[unit]) {
      if (!plan_.flats[f].trainable) continue;
      const int64_t part_count = plan_.flats[f].layout.shard_count() / peers;
      const int64_t squares_bytes = into.result_has_squares() ? needed_bytes(plan_, Role::kBlockSquares, f) : 0;
      const int64_t gathered_bytes = part_count * element_bytes(into.result_dtype()) + squares_bytes / peers;
      int64_t crossing_bytes = 0;
      for (const GroupPlacement& of : links_.crossings().peers)
        crossing_bytes += of.reduced_bytes(part_count, DType::kFloat32) + of.gathered_bytes(gathered_bytes);
      const int64_t bytes = (part_count * element_bytes(DType::kFloat32) + gathered_bytes) * (peers - 1);
      const int rounds = into.result_has_squares() ? 3 : 2;
      const double inside =
          rounds * cost_.inside_node.latency_seconds + static_cast<double>(bytes) / cost_.inside_node.bytes_per_second;
      Price one = links_.move(inside, crossing_bytes, !links_.world().one_node, rounds);
      one.bytes = bytes;
      add(sum, one);
      const auto copied = static_cast<double>(copied_bytes(into, plan_.flats[f]));
      if (copied > 0) add(sum, links_.move(copied / cost_.copy_bytes_per_second, 0, false));
    }
    return sum;
  }

  /// Returns the price of the norm, which is an all-gather within the shard group. With several shard groups, an
  /// all-reduce of the abandon flag over the world follows. Tensor groups, and then pipeline stages, add the sums of
  /// all tensors in small all-reduces. Tensor groups also compare which uses they skip.
  Price norm() const {
    const int64_t part_bytes = norm_part_bytes(plan_);
    Price price = links_.collective(part_bytes, links_.inter_node_gather_bytes(part_bytes));
    int64_t rounds = plan_.topology.rank_count() < plan_.world.rank_count() ? 1 : 0;
    int64_t tensors = 0;
    for (const FlatSpec& flat : plan_.flats) tensors += flat.trainable ? std::ssize(flat.layout.tensors()) : 0;
    const int64_t exchange = (tensors + Communicator::kSmallCount - 1) / Communicator::kSmallCount;
    rounds += exchange * ((plan_.policy.tensor > 1 ? 1 : 0) + (plan_.stage.count > 1 ? 1 : 0)) +
              (plan_.policy.tensor > 1 ? 1 : 0);
    if (plan_.has_exact_norm()) {
      rounds += 2;
      constexpr int kReads = 3;
      for (int32_t f = 0; f < static_cast<int32_t>(plan_.flats.size()); ++f) {
        if (plan_.trains(f))
          add(price,
              links_.memory_traffic(static_cast<double>(kReads * shard_bytes(plan_.flats[f], precision().gradients))));
      }
    }
    for (; rounds > 0; --rounds) add(price, links_.move(cost_.inside_node.latency_seconds, 0, !plan_.world.one_node()));
    return price;
  }

  /// Returns the price of gathering or scattering matrices. A rank sends its shards of the matrices and receives the
  /// matrices that it owns, or the reverse. At ZeRO stage 0, matrices stay in place, and a rank receives the results of
  /// the other ranks. The larger direction determines the time.
  Price move_matrices(int32_t group) const {
    if (links_.replica().rank_count == 1) return {};
    const MatrixGroup& what = plan_.matrix_groups[group];
    int64_t all = 0;
    for (const OwnedMatrix& matrix : what.matrices) all += matrix.size_bytes();
    const double ranks = links_.replica().rank_count, on_a_node = links_.replica().min_ranks_per_node;
    const double share = static_cast<double>(all) / ranks;
    const double sent = what.in_place ? static_cast<double>(all) : share;
    const double received = what.in_place ? sent : std::max(share, static_cast<double>(what.held_bytes));
    const double inside =
        cost_.inside_node.latency_seconds + received * (ranks - 1) / ranks / cost_.inside_node.bytes_per_second;
    // All ranks of a node receive data from other nodes over one link.
    const double elsewhere = on_a_node * (ranks - on_a_node) / ranks * static_cast<double>(links_.groups());
    Price price = links_.move(inside, std::llround(received * elsewhere), !links_.replica().one_node);
    price.bytes = std::llround(sent * (ranks - 1) / ranks);
    // Assumes that owners have equal work, which is nearly true.
    price.crossing_bytes = std::llround(sent * elsewhere);
    return price;
  }

  double muon_momentum(int32_t group) const {
    double elements = 0;
    for (const int32_t f : plan_.matrix_groups[group].flats) elements += static_cast<double>(plan_.updated_count(f));
    return 0.5 * elements * cost_.update_seconds_per_element;
  }

  /// Returns the time of an update with digests, divided by that of an update without. An estimate. A host computes
  /// digests while the data is in the cache. A GPU reads the state once more before the update, and once after it.
  double digest_factor() const {
    constexpr double kOnHosts = 1.3, kOnGpus = 1.9;
    if (!plan_.policy.check_state) return 1;
    return plan_.topology.has_gpus() ? kOnGpus : kOnHosts;
  }

  Price compare_state(UnitId unit) const {
    Price sum;
    for (const int32_t f : plan_.flats_of_unit[unit]) {
      if (!plan_.compares_outside_updates(f)) continue;
      const int64_t shards = plan_.schedule.zero_stage == 3 ? 1 : plan_.topology.rank_count();
      const int64_t own = plan_.flats[f].trainable ? 1 : 0;  // the update compares the own shard
      const int64_t bytes = (shards - own) * shard_bytes(plan_.flats[f], precision().compute);
      add(sum, links_.memory_traffic(static_cast<double>(bytes)));
    }
    return sum;
  }

  /// Only steps with a replay compute digests, and the price is that of other steps. In a replay, the price includes
  /// the digests of the step itself.
  Price digest_gradients(UnitId unit) const {
    Price sum;
    if (!plan_.policy.replay) return sum;
    for (const int32_t f : plan_.flats_of_unit[unit]) {
      if (!plan_.flats[f].trainable) continue;
      const int64_t bytes = plan_.flats[f].layout.flat_count() * element_bytes(precision().gradients);
      add(sum, links_.memory_traffic(static_cast<double>(2 * bytes)));
    }
    return sum;
  }

  /// The bytes that the first node sends to other nodes in a reduce-scatter with ReduceScatter::alone.
  static int64_t crossing_bytes_alone(const std::vector<GroupPlacement>& groups, int64_t part_bytes) {
    int64_t bytes = 0;
    for (const GroupPlacement& of : groups) bytes += of.ranks_on_node * (of.rank_count - of.ranks_on_node) * part_bytes;
    return bytes;
  }

  /// Adds the price of the repetitions of a reduce in a step with a replay. Between nodes, this includes the reduce
  /// itself, which needs more traffic in such a step.
  void repeat_reduce(int32_t flat, Price& sum) const {
    const RepeatedSums repeated = repeated_sums(plan_, GroupId::kShard, flat);
    if (repeated.count == 0) return;
    const int64_t part_bytes = shard_bytes(plan_.flats[flat], precision().sent());
    for (int i = 0; i < repeated.count + (plan_.topology.one_node() ? 0 : 1); ++i)
      add(sum, links_.collective(part_bytes, crossing_bytes_alone(links_.crossings().replicas, part_bytes)));
    add(sum, links_.memory_traffic(static_cast<double>((1 + repeated.count) * part_bytes)));
  }

  void repeat_replica_all_reduce(int32_t flat, Price& sum) const {
    const RepeatedSums repeated = repeated_sums(plan_, GroupId::kReplica, flat);
    if (repeated.count == 0) return;
    const int64_t part_bytes = repeated.block_count * kBlockElements * element_bytes(DType::kFloat32);
    const int64_t bytes = part_bytes * (plan_.policy.replica_count - 1);
    const double inside =
        cost_.inside_node.latency_seconds + static_cast<double>(bytes) / cost_.inside_node.bytes_per_second;
    for (int i = 0; i < repeated.count + (links_.world().one_node ? 0 : 1); ++i)
      add(sum,
          links_.move(inside, crossing_bytes_alone(links_.crossings().peers, part_bytes), !links_.world().one_node));
    add(sum, links_.memory_traffic(static_cast<double>((1 + repeated.count) * part_bytes)));
  }

  double update(UnitId unit) const {
    double elements = 0;
    for (const int32_t f : plan_.flats_of_unit[unit]) {
      if (!plan_.flats[f].trainable) continue;
      // For matrices, kUpdate does half of the update, and kMuonMomentum does the other half. Each half moves about
      // half as many bytes as an AdamW update.
      elements += static_cast<double>(plan_.updated_count(f)) * (plan_.flats[f].matrices ? 0.5 : 1);
    }
    return elements * cost_.update_seconds_per_element;
  }

  const Precision& precision() const { return plan_.policy.precision; }

  const Plan& plan_;
  const CostModel& cost_;
  LinkPrices links_;
  std::vector<std::vector<BufferId>> copies_;  // result of copied_slots(): the slots of each copy operation
  std::vector<ReduceRecipe> recipes_;          // result of reduce_recipes()
};

}  // namespace

void check_uses(const ModelSpec& model, const CostModel& cost) {
  if (cost.uses.empty() || cost.uses.size() == model.uses.size()) return;
  throw UsageError(
      fmt::format("CostModel::uses has {} entries, but the model has {} uses", cost.uses.size(), model.uses.size()));
}

double model_seconds(const ModelSpec& model, const CostModel& cost, int32_t use, Verb verb) {
  if (!cost.uses.empty()) {
    const UseCost& of = cost.uses[use];
    if (!is_backward(verb)) return of.forward_seconds;
    if (verb == Verb::kBackward) return of.backward_seconds;
    const double of_input = of.backward_input_seconds.value_or(of.backward_seconds / 2);
    return verb == Verb::kBackwardInput ? of_input : of.backward_seconds - of_input;
  }
  double elements = 0;
  for (const UnitId unit : model.uses[use]) {
    for (const ParameterSpec& parameter : model.units[unit].parameters)
      elements += static_cast<double>(parameter.tensor.element_count());
  }
  const double flops_per_sample = verb == Verb::kBackward ? 4 : 2;
  return elements * cost.samples_per_micro_batch * flops_per_sample / cost.flops_per_second;
}

std::vector<Price> prices(const Plan& plan, const CostModel& cost) {
  const Pricing pricing(plan, cost);
  std::vector<Price> all;
  for (OperationId id = 0; id < static_cast<OperationId>(plan.schedule.operations.size()); ++id)
    all.push_back(pricing.of(id));
  return all;
}

double repetition_seconds(const Plan& plan, const CostModel& cost) {
  const Pricing pricing(plan, cost);
  double seconds = 0;
  for (OperationId id = 0; id < static_cast<OperationId>(plan.schedule.operations.size()); ++id)
    seconds += pricing.repetition_seconds(id);
  return seconds;
}

}  // namespace aliquot
