#include "engine/run/step_work.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "engine/plan/accesses.h"
#include "engine/plan/pipeline.h"
#include "engine/plan/sizes.h"
#include "engine/plan/slices.h"
#include "engine/plan/use_collectives.h"
#include "engine/run/fault_injector.h"
#include "kernels/elementwise/kernels.h"
#include "kernels/system/seconds.h"

namespace aliquot {

StepWork::StepWork(const Parts& parts)
    : plan_(parts.plan),
      ranks_(parts.groups.shard_group()),
      groups_(parts.groups),
      kernels_(parts.groups.world().device().kernels()),
      arena_(parts.arena),
      memory_(parts.memory),
      offload_stores_(parts.offload_stores),
      view_(parts.view),
      updater_(parts.updater),
      digests_(parts.digests),
      copies_(copied_slots(parts.plan.schedule)),
      recipes_(reduce_recipes(parts.plan)) {
  if (plan_.policy.updates()) norm_.emplace(plan_, groups_, memory_, view_);
  if (plan_.has_exact_norm()) exact_norm_.emplace(plan_, groups_);
  const auto* muon = std::get_if<Muon>(&parts.optimizer);
  if (plan_.policy.updates() && muon != nullptr)
    matrices_.emplace(plan_, memory_, ranks_, *muon, groups_.world().device());
  if (plan_.policy.quantize_weights || encodes_gradients(plan_) || encodes_exchanges(plan_))
    quantized_.emplace(plan_, memory_, ranks_, kernels_);
  const int tensor = groups_.coordinates().tensor;
  if (plan_.policy.check) red_zones_.emplace(plan_, memory_, groups_.world().device(), tensor);
  for (int32_t f = 0; f < static_cast<int32_t>(plan_.flats.size()); ++f)
    padding_.push_back(slice_gaps(plan_, f, tensor));
  note_first_writes();
  if (plan_.stage.count > 1) note_transfers();
}

void StepWork::begin_step() {
  next_addition_ = 0;
  if (quantized_) quantized_->begin_step();
}

void StepWork::set_repeats_sums(bool on) {
  repeats_sums_ = on && !plan_.policy.replay;
  if (!repeats_sums_) return;
  const auto& buffers = plan_.schedule.buffers;
  for (BufferId b = 0; b < static_cast<BufferId>(buffers.size()); ++b) {
    if (buffers[b].role == Role::kSumDigests || buffers[b].role == Role::kReplicaSumDigests)
      view_.clear(memory_.peek(b), buffers[b].size_bytes);
  }
}

void StepWork::copy(Stream& io, OperationId id) {
  const bool in = plan_.schedule.operations[id].verb == Verb::kCopyIn;
  for (const BufferId slot : copies_[id]) {
    const PlannedBuffer& what = plan_.schedule.buffers[slot];
    const PlannedBuffer& rests = plan_.schedule.buffers[memory_.current(*offloaded_role_of(what.role), what.flat)];
    OffloadStore& home = *offload_stores_.of(rests.space);
    memory_.declare_access(what.role, what.flat, in ? AccessMode::kWrites : AccessMode::kReads);
    memory_.declare_access(rests.role, what.flat, in ? AccessMode::kReads : AccessMode::kWrites);
    if (in) {
      home.copy_in(io, memory_.peek(slot), rests.offset_bytes, what.size_bytes);
    } else {
      home.copy_out(io, rests.offset_bytes, memory_.peek(slot), what.size_bytes);
    }
  }
}

void StepWork::note_first_writes() {
  const auto& operations = plan_.schedule.operations;
  first_writes_.resize(operations.size());
  accumulating_flats_.resize(operations.size());
  const auto accumulating = accumulating_units(plan_);
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    const Operation& operation = operations[id];
    if (!computes_weight_gradients(operation.verb)) continue;
    for (const UnitId unit : plan_.model.uses[operation.operand]) {
      const bool adds = std::ranges::find(accumulating[id], unit) != accumulating[id].end();
      for (const int32_t f : plan_.flats_of_unit[unit]) {
        if (plan_.flats[f].trainable) (adds ? accumulating_flats_ : first_writes_)[id].push_back(f);
      }
    }
  }
}

/// Fills transfers_. In the communicator of two stages, rank 0 is on the earlier stage and rank 1 on the later stage.
void StepWork::note_transfers() {
  const auto& operations = plan_.schedule.operations;
  transfers_.resize(operations.size());
  if (plan_.policy.digests_gradients()) make_sent_sums();
  const TransferBuffers buffers(plan_.schedule);
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    const Operation& operation = operations[id];
    if (!is_transfer(operation.verb)) continue;
    const bool activations = transfers_activations(operation.verb), sends = is_send(operation.verb);
    const int64_t own = buffers.of(id)->offset_bytes, other = operation.peer_offset_bytes;
    transfers_[id] = {.source = activations ? 0 : 1,
                      .target = activations ? 1 : 0,
                      .from_bytes = sends ? own : other,
                      .to_bytes = sends ? other : own,
                      .size_bytes = transfer_bytes(plan_.model, operation)};
  }
}

void StepWork::make_sent_sums() {
  const std::size_t count = transfers_.size();
  if (view_.device().kind() == DeviceKind::kHost) return host_sent_sums_.resize(count);
  pinned_sent_sums_ =
      view_.device().allocate_host(static_cast<int64_t>(count * sizeof(uint64_t)), "sums of what stages send");
  std::uninitialized_fill_n(pinned_sent_sums_.as<uint64_t>(), count, 0);
}

void StepWork::transfer(Stream& lane, OperationId id, Label label) {
  const Operation& operation = plan_.schedule.operations[id];
  const bool activations = transfers_activations(operation.verb), sends = is_send(operation.verb);
  const Role role = activations ? Role::kOutputActivations : Role::kActivationGradients;
  const int32_t owner = activations ? operation.operand : -1;
  memory_.declare_access(role, owner, sends ? AccessMode::kReads : AccessMode::kWrites);
  if (red_zones_ && !sends) red_zones_->fill_received(lane, role, owner);
  const SymmetricRange arena{&arena_.pair(operation.verb), 0};
  const Transfers what{.to = arena, .from = arena, .own = {&transfers_[id], 1}, .all_bytes = transfers_[id].size_bytes};
  groups_.pair(operation.verb).transfer(lane, what, sends, label);
}

void StepWork::gather_quantized_shards(Stream& lane, const Operation& operation, Label label) {
  for (const int32_t f : plan_.flats_of_unit[operation.operand]) quantized_->gather_quantized_shards(lane, f, label);
}

void StepWork::gather(Stream& lane, const Operation& operation, Label label) {
  for (const int32_t f : plan_.flats_of_unit[operation.operand]) {
    if (plan_.schedule.view) {  // no data is transferred
      memory_.declare_access(Role::kParameters, f, AccessMode::kReads);
      continue;
    }
    if (plan_.policy.quantize_weights) {
      quantized_->gather(lane, f, label);
      continue;
    }
    const int64_t part_bytes = shard_bytes(plan_.flats[f], plan_.policy.precision.compute);
    const bool offloaded = memory_.current(Role::kStagedShard, f) != kNoBuffer;
    const Role shard = offloaded ? Role::kStagedShard : Role::kParameters;
    ranks_.all_gather(lane, memory_.range(Role::kGathered, f, AccessMode::kWrites),
                      memory_.range(shard, f, AccessMode::kReads), part_bytes, label);
  }
}

void StepWork::reduce(Stream& lane, OperationId id, Label label) {
  for (const int32_t f : plan_.flats_of_unit[plan_.schedule.operations[id].operand]) {
    if (plan_.flats[f].trainable) reduce_flat(lane, id, f, label);
  }
}

void StepWork::reduce_flat(Stream& lane, OperationId id, int32_t flat, Label label) {
  const ReduceRecipe& recipe = recipes_[id];
  const Accumulation& into = recipe.into;
  const int64_t count = plan_.flats[flat].layout.shard_count();
  std::byte* result = memory_.address(into.result(), flat, AccessMode::kWrites);
  if (into.result() == Role::kGradients) result += ranks_.rank() * count * element_bytes(into.result_dtype());
  const ReduceScatter what{.from = sent(lane, recipe, flat),
                           .from_dtype = recipe.sent_dtype,
                           .to = result,
                           .to_dtype = into.result_dtype(),
                           .part_count = count,
                           .block_squares = into.result_has_squares() ? squares(flat, AccessMode::kWrites) : nullptr,
                           .in_tree_order = plan_.adds_in_tree_order(flat),
                           .staging = memory_.address(Role::kReduceStaging, -1, AccessMode::kWrites)};
  if (recipe.encoded) {
    quantized_->reduce_scatter(lane, flat, what, label);
  } else {
    add_over_ranks(lane, GroupId::kShard, what, {id, flat}, label);
  }
  add_earlier_sums(lane, into, flat);
}

/// Performs the reduce-scatter. In a step with a replay, first computes the sums of other ranks (RepeatedSums) and
/// keeps only their digests. Computes this rank's own sum last, because it may overwrite `from`, which other ranks read
/// for the repeated sums. Each reduce-scatter first waits for all ranks, so they have then finished the repeated sums.
void StepWork::add_over_ranks(Stream& lane, GroupId group, ReduceScatter what, SumOf of, Label label) {
  Communicator& ranks = groups_.at(group);
  const RepeatedSums repeated = repeated_sums(plan_, group, of.flat);
  if (repeated.count == 0) return ranks.reduce_scatter(lane, what, label);
  std::byte* scratch = memory_.address(repeated.sums, of.flat, AccessMode::kReadsAndWrites);
  auto* digests = reinterpret_cast<uint64_t*>(memory_.address(repeated.digests, of.flat, AccessMode::kReadsAndWrites));
  if (!repeats_sums_) return ranks.reduce_scatter(lane, what, label);
  what.alone = true;
  const bool measures = view_.device().kind() == DeviceKind::kHost;
  double* const began = &repetition_began_[static_cast<std::size_t>(lane.lane())];
  if (measures) lane.run([began] { *began = now_seconds(); });
  const int64_t element = element_bytes(what.to_dtype);
  for (int shift = repeated.count; shift >= 0; --shift) {
    if (shift == 0 && measures)
      lane.run([this, began] { repetition_nanoseconds_ += std::llround(1e9 * (now_seconds() - *began)); });
    ReduceScatter one = what;
    one.shift = shift;
    if (shift > 0) {
      one.to = scratch;
      one.block_squares = nullptr;
    }
    ranks.reduce_scatter(lane, one, label);
    auto* sum = static_cast<std::byte*>(one.to);
    if (faults_ != nullptr && what.part_count > 0) faults_->after_sum(lane, of.operation, label.step, sum, shift > 0);
    kernels_.block_digests(lane, {.digests = digests + repeated.first_digest(shift),
                                  .data = sum,
                                  .block_bytes = kBlockElements * element,
                                  .size_bytes = what.part_count * element,
                                  .chains = true});
  }
}

double* StepWork::squares(int32_t flat, AccessMode how) const {
  return reinterpret_cast<double*>(memory_.address(Role::kBlockSquares, flat, how));
}

void StepWork::add_earlier_sums(Stream& lane, const Accumulation& into, int32_t flat) {
  if (into.additions == 0) return;
  std::byte* partial = memory_.peek(into.result(), flat);
  std::byte* sum = memory_.address(into.sum, flat, into.in_levels ? AccessMode::kWrites : AccessMode::kReadsAndWrites);
  double* block_squares = into.squares ? squares(flat, AccessMode::kWrites) : nullptr;
  for (int i = 0; i < into.additions; ++i) {
    const bool done = i == into.additions - 1;
    const std::byte* waiting = into.in_levels ? memory_.address(into.waiting(i), flat, AccessMode::kReads) : sum;
    kernels_.sum_tree(lane, {.bases = addition_sources(waiting, partial),
                             .from_dtype = into.partial_dtype,
                             .to = done ? sum : partial,
                             .to_dtype = done ? into.sum_dtype : into.partial_dtype,
                             .count = plan_.flats[flat].layout.shard_count(),
                             .block_squares = done ? block_squares : nullptr});
  }
}

SymmetricRange StepWork::sent(Stream& lane, const ReduceRecipe& recipe, int32_t flat) {
  if (recipe.casts()) {
    kernels_.cast(lane, memory_.address(Role::kSentGradients, flat, AccessMode::kWrites), recipe.sent_dtype,
                  memory_.address(Role::kGradients, flat, AccessMode::kReads), recipe.gradient_dtype,
                  plan_.flats[flat].layout.flat_count());
  }
  return memory_.range(recipe.sent(), flat, AccessMode::kReads);
}

/// Returns a list of two addresses that exists until the work has run. The norm waits for the reduce lane before the
/// step ends, so begin_step() may reuse the lists.
std::span<const std::byte* const> StepWork::addition_sources(const void* left, const void* right) {
  if (next_addition_ == addition_sources_.size()) addition_sources_.emplace_back();
  auto& sources = addition_sources_[next_addition_++];
  sources = {static_cast<const std::byte*>(left), static_cast<const std::byte*>(right)};
  return sources;
}

/// The barrier ensures that no rank still reads this rank's buffers: the additions write to them, as do later
/// operations.
void StepWork::replica_all_reduce(Stream& lane, OperationId id, Label label) {
  const Accumulation& into = recipes_[id].into;
  const auto for_trained = [&](const auto& work) {
    for (const int32_t f : plan_.flats_of_unit[plan_.schedule.operations[id].operand]) {
      if (plan_.flats[f].trainable) work(f);
    }
  };
  for_trained([&](int32_t f) { replica_all_reduce_flat(lane, id, f, label); });
  groups_.at(GroupId::kReplica).barrier(lane, label);
  for_trained([&](int32_t f) { add_earlier_sums(lane, into, f); });
}

/// Each rank of the replicate group sums one part over all replicas, in rank order, and all ranks gather all parts.
void StepWork::replica_all_reduce_flat(Stream& lane, OperationId id, int32_t flat, Label label) {
  const Accumulation& into = recipes_[id].into;
  constexpr GroupId kGroup = GroupId::kReplica;
  Communicator& peers = groups_.at(kGroup);
  if (encodes_exchanges(plan_)) return quantized_->replica_all_reduce(lane, flat, peers, label);
  const int64_t part_count = plan_.flats[flat].layout.shard_count() / peers.rank_count();
  const int64_t part_bytes = part_count * element_bytes(into.result_dtype());
  const int64_t part_squares = part_count / kBlockElements;
  const SymmetricRange result = memory_.range(into.result(), flat, AccessMode::kReadsAndWrites, kGroup);
  const bool has_squares = into.result_has_squares();
  add_over_ranks(
      lane, kGroup,
      {.from = memory_.range(Role::kReplicaPartialSums, flat, AccessMode::kReads, kGroup),
       .to = memory_.peek(into.result(), flat) + peers.rank() * part_bytes,
       .to_dtype = into.result_dtype(),
       .part_count = part_count,
       .block_squares = has_squares ? squares(flat, AccessMode::kWrites) + peers.rank() * part_squares : nullptr,
       .in_tree_order = plan_.adds_in_tree_order(flat),
       .staging = memory_.address(Role::kExchangeStaging, -1, AccessMode::kWrites)},
      {id, flat}, label);
  peers.all_gather_in_place(lane, result, part_bytes, label);
  // All replicas get the block sums, so that the norm needs messages only within each replica. There is one double per
  // 256 elements.
  if (has_squares) {
    peers.all_gather_in_place(lane, memory_.range(Role::kBlockSquares, flat, AccessMode::kReadsAndWrites, kGroup),
                              part_squares * static_cast<int64_t>(sizeof(double)), label);
  }
}

void StepWork::all_gather_gradients(Stream& lane, const Operation& operation, Label label) {
  for (const int32_t f : plan_.flats_of_unit[operation.operand]) {
    if (!plan_.flats[f].trainable) continue;
    const int64_t part_bytes = shard_bytes(plan_.flats[f], plan_.policy.precision.gradients);
    const bool in_place = memory_.current(Role::kReducedGradients, f) == kNoBuffer;
    const SymmetricRange whole =
        memory_.range(Role::kGradients, f, in_place ? AccessMode::kReadsAndWrites : AccessMode::kWrites);
    if (in_place) {
      ranks_.all_gather_in_place(lane, whole, part_bytes, label);
    } else {
      ranks_.all_gather(lane, whole, memory_.range(Role::kReducedGradients, f, AccessMode::kReads), part_bytes, label);
    }
  }
}

void StepWork::all_gather_parameters(Stream& lane, const Operation& operation, Label label) {
  for (const int32_t f : plan_.flats_of_unit[operation.operand]) {
    if (!plan_.flats[f].trainable) continue;
    const int64_t part_bytes = shard_bytes(plan_.flats[f], plan_.policy.precision.compute);
    ranks_.all_gather_in_place(lane, memory_.range(Role::kParameters, f, AccessMode::kReadsAndWrites), part_bytes,
                               label);
    if (!plan_.policy.check_state) continue;
    const int64_t digest_bytes = plan_.flats[f].layout.shard_count() / kBlockElements * int64_t{sizeof(uint64_t)};
    ranks_.all_gather_in_place(lane, memory_.range(Role::kStateDigests, f, AccessMode::kReadsAndWrites), digest_bytes,
                               label);
  }
}

void StepWork::compare_state(Stream& lane, const Operation& operation, Label label) {
  digests_.compare(lane, operation.operand, label.step);
}

void StepWork::sum_sent(Stream& lane, OperationId id) {
  const Transfer& what = transfers_[id];
  kernels_.digest_sum(lane, sent_sums() + id, arena_.local() + what.from_bytes, what.size_bytes);
}

std::vector<SentSum> StepWork::sums_of_sends() {
  std::vector<SentSum> sums;
  for (std::size_t id = 0; id < transfers_.size(); ++id) {
    const Operation& operation = plan_.schedule.operations[id];
    if (is_send(operation.verb) && operation.micro_batch == 0)
      sums.push_back({position_of_send(plan_.stage, operation), sent_sums()[id]});
  }
  std::ranges::sort(sums, {}, &SentSum::position);
  return sums;
}

void StepWork::digest_gradients(Stream& lane, UnitId unit) {
  for (const int32_t f : plan_.flats_of_unit[unit]) {
    if (!plan_.flats[f].trainable) continue;
    const int64_t count = plan_.flats[f].layout.flat_count();
    auto* digests = reinterpret_cast<uint64_t*>(memory_.address(Role::kGradientDigests, f, AccessMode::kWrites));
    if (plan_.policy.replay) digests += count / kBlockElements;
    const int64_t element = element_bytes(plan_.policy.precision.gradients);
    kernels_.block_digests(lane, {.digests = digests,
                                  .data = memory_.address(Role::kGradients, f, AccessMode::kReads),
                                  .block_bytes = kBlockElements * element,
                                  .size_bytes = count * element});
  }
}

/// Each rank sums the rows that it owns in place, and then all ranks gather all rows. The model code that follows may
/// overwrite the data, so the last barrier waits until no rank reads it.
void StepWork::use_collective(Stream& lane, const Operation& operation, Label label) {
  Communicator& ranks = groups_.at(GroupId::kTensor);
  const UseCollective& what = collective_of(plan_.model, operation);
  const auto [role, owner] = buffer_of(what, operation.operand);
  SymmetricRange data = memory_.range(role, owner, AccessMode::kWrites, GroupId::kTensor);
  data.offset_bytes += what.offset_bytes;
  const int64_t part_count = what.rows_per_part(ranks.rank_count()) * what.row_elements;
  const int64_t part_bytes = part_count * element_bytes(what.dtype);
  if (adds(what.kind)) {
    ranks.reduce_scatter(lane,
                         {.from = data,
                          .from_dtype = what.dtype,
                          .to = data.buffer->local() + data.offset_bytes + ranks.rank() * part_bytes,
                          .to_dtype = what.dtype,
                          .part_count = part_count,
                          .in_tree_order = plan_.adds_in_tree_order(),
                          .staging = memory_.address(Role::kCollectiveStaging, -1, AccessMode::kWrites)},
                         label);
  }
  if (what.kind != CollectiveKind::kScatterSum) ranks.all_gather_in_place(lane, data, part_bytes, label);
  ranks.barrier(lane, label);
}

/// Each rank adds one part of the gradients in place, and then all ranks gather all parts. The barrier ensures that no
/// rank reads this rank's gradients after the operation.
void StepWork::sum_over_tensor(Stream& lane, const Operation& operation, Label label) {
  Communicator& ranks = groups_.at(GroupId::kTensor);
  const DType dtype = plan_.policy.precision.gradients;
  for (const int32_t f : plan_.flats_of_unit[operation.operand]) {
    if (!plan_.sums_over_tensor(f)) continue;
    const SymmetricRange data = memory_.range(Role::kGradients, f, AccessMode::kWrites, GroupId::kTensor);
    const int64_t part_count = plan_.flats[f].layout.flat_count() / ranks.rank_count();
    const int64_t part_bytes = part_count * element_bytes(dtype);
    ranks.reduce_scatter(lane,
                         {.from = data,
                          .from_dtype = dtype,
                          .to = data.buffer->local() + data.offset_bytes + ranks.rank() * part_bytes,
                          .to_dtype = dtype,
                          .part_count = part_count,
                          .in_tree_order = plan_.adds_in_tree_order(),
                          .staging = memory_.address(Role::kTensorSumStaging, -1, AccessMode::kWrites)},
                         label);
    ranks.all_gather_in_place(lane, data, part_bytes, label);
  }
  ranks.barrier(lane, label);
}

void StepWork::matrices(Stream& lane, const Operation& operation, const UpdateSteps& steps, Label label) {
  if (!std::isfinite(steps.blend.gradient_factor)) return memory_.skip_operation();
  const int32_t group = operation.operand;
  if (operation.verb == Verb::kGatherMatrices) return matrices_->gather_matrices(lane, group, label);
  if (operation.verb == Verb::kOrthogonalize) return matrices_->orthogonalize(lane, group);
  if (operation.verb == Verb::kScatterMatrices) return matrices_->scatter_matrices(lane, group, label);
  for (const int32_t f : plan_.matrix_groups[group].flats) updater_.muon_momentum(lane, f, steps);
}

void StepWork::update(Stream& lane, UnitId unit, const UpdateSteps& steps) {
  updater_.update(lane, unit, steps);
  if (plan_.policy.update_in_backward) return;
  for (const int32_t f : plan_.flats_of_unit[unit]) {
    std::byte* carried = memory_.address(Role::kErrorFeedbackResidual, f, AccessMode::kWrites);
    if (carried != nullptr && steps.resets_residual)
      kernels_.fill(lane, carried, DType::kUInt8, 0.0f, needed_bytes(plan_, Role::kErrorFeedbackResidual, f));
  }
}

NormResult StepWork::norm(Stream& lane, bool abandons, Label label) {
  norm_->exchange(lane, memory_, abandons, label);
  lane.synchronize();  // sum_tensors() needs the results of exchange()
  norm_->sum_tensors(memory_);
  if (norm_->exchanges_tensors()) {
    norm_->exchange_tensors(lane, label);
    lane.synchronize();
  }
  NormResult result = norm_->finish();
  if (!exact_norm_ || result.abandoned_by >= 0) {
    if (exact_norm_) memory_.skip_operation();
    return result;
  }
  // Sums of rounded squares can be infinite although no gradient is.
  if (const auto exact = exact_norm_->sum_of_squares(lane, memory_, label)) {
    result.sum_of_squares = *exact;
    result.first_not_finite.clear();
  }
  return result;
}

/// A backward pass reads and writes the same memory. Only the one of the model's last use writes it first.
void StepWork::clear_sent(Stream& compute, OperationId use) {
  const Operation& operation = plan_.schedule.operations[use];
  const auto& uses = plan_.model.activations.uses;
  const bool is_last = operation.operand + 1 == static_cast<int32_t>(uses.size());
  const VirtualStage& run = plan_.stage.run_of_use(operation.operand);
  const bool sends = operation.operand == run.last_use() && !plan_.stage.is_last(run);
  const auto clear = [&](Role role, int32_t owner) {
    kernels_.fill(compute, memory_.address(role, owner, AccessMode::kWrites), DType::kUInt8, 0.0f,
                  declared_bytes(plan_.model, role, owner));
  };
  if (operation.verb == Verb::kForward && sends) clear(Role::kOutputActivations, operation.operand);
  if (computes_input_gradients(operation.verb) && is_last) clear(Role::kActivationGradients, -1);
}

void StepWork::open_use(Stream& compute, OperationId use, bool all) {
  clear_gradients(compute, use, all);
  if (red_zones_) red_zones_->fill(compute, use);
}

void StepWork::close_use(Stream& compute, OperationId use) {
  if (red_zones_) red_zones_->compare(compute, use);
  const Operation& operation = plan_.schedule.operations[use];
  if (!computes_weight_gradients(operation.verb)) return;
  for (const UnitId unit : plan_.model.uses[operation.operand]) {
    for (const int32_t f : plan_.flats_of_unit[unit]) {
      if (plan_.flats[f].trainable) clear_padding(compute, f);
    }
  }
}

void StepWork::clear_gradients(Stream& compute, OperationId backward, bool all) {
  for (const int32_t flat : accumulating_flats_[backward])
    memory_.declare_access(Role::kGradients, flat, AccessMode::kReads);
  for (const int32_t flat : first_writes_[backward]) {
    const FlatSpec& spec = plan_.flats[flat];
    if (!all && plan_.model.units[spec.unit].gradients == GradientMode::kAssign) continue;
    kernels_.fill(compute, memory_.address(Role::kGradients, flat, AccessMode::kWrites),
                  plan_.policy.precision.gradients, 0.0f, spec.layout.flat_count());
  }
}

void StepWork::clear_padding(Stream& compute, int32_t flat) {
  const DType dtype = plan_.policy.precision.gradients;
  std::byte* gradients = memory_.address(Role::kGradients, flat, AccessMode::kWrites);
  for (const Gap& gap : padding_[flat])
    kernels_.fill(compute, gradients + gap.begin * element_bytes(dtype), dtype, 0.0f, gap.end - gap.begin);
}

}  // namespace aliquot
