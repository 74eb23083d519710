#include "engine/run/step_work.h"

#include <cmath>

#include "engine/plan/sizes.h"
#include "kernels/elementwise/kernels.h"

namespace aliquot {

StepWork::StepWork(const Parts& parts)
    : plan_(parts.plan),
      ranks_(parts.groups.replica()),
      groups_(parts.groups),
      kernels_(parts.groups.world().device().kernels()),
      memory_(parts.memory),
      homes_(parts.homes),
      updater_(parts.updater),
      copies_(copied_slots(parts.plan.schedule)),
      recipes_(reduce_recipes(parts.plan)) {
  if (!plan_.policy.evaluation) norm_.emplace(plan_, groups_);
  const auto* muon = std::get_if<Muon>(&parts.optimizer);
  if (!plan_.policy.evaluation && muon != nullptr)
    matrices_.emplace(plan_, memory_, ranks_, *muon, groups_.world().device().kind());
  if (plan_.policy.quantize_weights || encodes_gradients(plan_) || encodes_exchanges(plan_))
    encoded_.emplace(plan_, memory_, ranks_, kernels_);
  if (plan_.policy.check) red_zones_.emplace(plan_, memory_, groups_.world().device());
  for (const FlatSpec& flat : plan_.flats) padding_.push_back(flat.layout.gaps());
  note_first_writes();
}

void StepWork::begin_step() {
  next_pair_ = 0;
  if (encoded_) encoded_->begin_step();
}

void StepWork::copy(Stream& io, OperationId id) {
  const bool in = plan_.schedule.operations[id].verb == Verb::kCopyIn;
  for (const BufferId slot : copies_[id]) {
    const PlannedBuffer& what = plan_.schedule.buffers[slot];
    const PlannedBuffer& rests = plan_.schedule.buffers[memory_.current(*home_of(what.role), what.flat)];
    Home& home = *homes_.of(rests.space);
    memory_.touch(what.role, what.flat, in ? Touch::kWrites : Touch::kReads);
    memory_.touch(rests.role, what.flat, in ? Touch::kReads : Touch::kWrites);
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
  added_to_.resize(operations.size());
  std::vector<bool> written(plan_.model.units.size(), false);
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    const Operation& operation = operations[id];
    if (operation.verb == Verb::kReduce) written[operation.place] = false;
    if (operation.verb != Verb::kBackward) continue;
    for (const UnitId unit : plan_.model.uses[operation.place]) {
      for (const int32_t f : plan_.flats_of_unit[unit]) {
        if (plan_.flats[f].trainable) (written[unit] ? added_to_ : first_writes_)[id].push_back(f);
      }
      written[unit] = true;
    }
  }
}

void StepWork::refresh(Stream& lane, const Operation& operation, Label label) {
  for (const int32_t f : plan_.flats_of_unit[operation.place]) encoded_->refresh(lane, f, label);
}

void StepWork::gather(Stream& lane, const Operation& operation, Label label) {
  for (const int32_t f : plan_.flats_of_unit[operation.place]) {
    if (plan_.schedule.view) {  // nothing moves
      memory_.touch(Role::kParameters, f, Touch::kReads);
      continue;
    }
    if (plan_.policy.quantize_weights) {
      encoded_->gather(lane, f, label);
      continue;
    }
    const int64_t part_bytes = shard_bytes(plan_.flats[f], plan_.policy.precision.compute);
    const bool offloaded = memory_.current(Role::kOffered, f) != kNoBuffer;
    const Role shard = offloaded ? Role::kOffered : Role::kParameters;
    ranks_.all_gather(lane, memory_.range(Role::kGathered, f, Touch::kWrites), memory_.range(shard, f, Touch::kReads),
                      part_bytes, label);
  }
}

void StepWork::reduce(Stream& lane, OperationId id, Label label) {
  for (const int32_t f : plan_.flats_of_unit[plan_.schedule.operations[id].place]) {
    if (plan_.flats[f].trainable) reduce_flat(lane, recipes_[id], f, label);
  }
}

void StepWork::reduce_flat(Stream& lane, const ReduceRecipe& recipe, int32_t flat, Label label) {
  const int64_t count = plan_.flats[flat].layout.shard_count();
  const bool adds = recipe.additions > 0;
  std::byte* sum =
      memory_.address(recipe.sum, flat, adds && !recipe.in_levels ? Touch::kReadsAndWrites : Touch::kWrites);
  if (recipe.sum == Role::kGradients) sum += ranks_.rank() * count * element_bytes(recipe.sum_dtype);
  std::byte* partial = adds ? memory_.address(Role::kPartial, flat, Touch::kWrites) : nullptr;
  auto* squares =
      recipe.squares ? reinterpret_cast<double*>(memory_.address(Role::kSquares, flat, Touch::kWrites)) : nullptr;
  const ReduceScatter what{.from = sent(lane, recipe, flat),
                           .from_dtype = recipe.sent_dtype,
                           .to = adds ? partial : sum,
                           .to_dtype = adds ? recipe.partial_dtype : recipe.sum_dtype,
                           .part_count = count,
                           .block_squares = adds ? nullptr : squares,
                           .in_tree_order = plan_.policy.reproducible,
                           .staging = memory_.address(Role::kReduceStaging, -1, Touch::kWrites)};
  if (recipe.encoded) {
    encoded_->reduce_scatter(lane, flat, what, label);
  } else {
    ranks_.reduce_scatter(lane, what, label);
  }
  for (int i = 0; i < recipe.additions; ++i) {
    const bool done = i == recipe.additions - 1;
    const std::byte* waiting = recipe.in_levels ? memory_.address(recipe.waiting(i), flat, Touch::kReads) : sum;
    kernels_.sum_tree(lane, {.bases = pair(waiting, partial),
                             .from_dtype = recipe.partial_dtype,
                             .to = done ? sum : partial,
                             .to_dtype = done ? recipe.sum_dtype : recipe.partial_dtype,
                             .count = count,
                             .block_squares = done ? squares : nullptr});
  }
}

SymmetricRange StepWork::sent(Stream& lane, const ReduceRecipe& recipe, int32_t flat) {
  if (recipe.casts()) {
    kernels_.cast(lane, memory_.address(Role::kSent, flat, Touch::kWrites), recipe.sent_dtype,
                  memory_.address(Role::kGradients, flat, Touch::kReads), recipe.gradient_dtype,
                  plan_.flats[flat].layout.flat_count());
  }
  return memory_.range(recipe.sent(), flat, Touch::kReads);
}

/// Stays in place until the work has run: the norm ends a step, and this lane's work with it.
std::span<const std::byte* const> StepWork::pair(const void* left, const void* right) {
  if (next_pair_ == pairs_.size()) pairs_.emplace_back();
  auto& sources = pairs_[next_pair_++];
  sources = {static_cast<const std::byte*>(left), static_cast<const std::byte*>(right)};
  return sources;
}

/// Every peer adds up one part of all replicas' sums, in the order of ranks, and all get all parts. Peers wait for one another
/// at the end: what they read of this rank is its own again.
void StepWork::exchange(Stream& lane, const Operation& operation, Label label) {
  Communicator& peers = groups_.peers();
  const DType dtype = plan_.policy.precision.gradients;
  for (const int32_t f : plan_.flats_of_unit[operation.place]) {
    if (!plan_.flats[f].trainable) continue;
    if (encodes_exchanges(plan_)) {
      encoded_->exchange(lane, f, peers, label);
      continue;
    }
    const int64_t part_count = plan_.flats[f].layout.shard_count() / peers.rank_count();
    const int64_t part_bytes = part_count * element_bytes(dtype);
    const int64_t part_squares = part_count / kBlockElements;
    peers.reduce_scatter(
        lane,
        {.from = memory_.range(Role::kAcross, f, Touch::kReads),
         .to = memory_.address(Role::kReduced, f, Touch::kWrites) + peers.rank() * part_bytes,
         .to_dtype = dtype,
         .part_count = part_count,
         .block_squares = reinterpret_cast<double*>(memory_.address(Role::kSquares, f, Touch::kWrites)) +
                          peers.rank() * part_squares,
         .staging = memory_.address(Role::kExchangeStaging, -1, Touch::kWrites)},
        label);
    peers.all_gather_in_place(lane, memory_.range(Role::kReduced, f, Touch::kWrites), part_bytes, label);
    // A 128th of what is added: the norm then goes over the replica alone.
    peers.all_gather_in_place(lane, memory_.range(Role::kSquares, f, Touch::kWrites),
                              part_squares * static_cast<int64_t>(sizeof(double)), label);
  }
  peers.barrier(lane, label);
}

void StepWork::spread(Stream& lane, const Operation& operation, Label label) {
  for (const int32_t f : plan_.flats_of_unit[operation.place]) {
    if (!plan_.flats[f].trainable) continue;
    const int64_t part_bytes = shard_bytes(plan_.flats[f], plan_.policy.precision.gradients);
    const bool in_place = memory_.current(Role::kReduced, f) == kNoBuffer;
    const SymmetricRange whole = memory_.range(Role::kGradients, f, in_place ? Touch::kReadsAndWrites : Touch::kWrites);
    if (in_place) {
      ranks_.all_gather_in_place(lane, whole, part_bytes, label);
    } else {
      ranks_.all_gather(lane, whole, memory_.range(Role::kReduced, f, Touch::kReads), part_bytes, label);
    }
  }
}

void StepWork::publish(Stream& lane, const Operation& operation, Label label) {
  for (const int32_t f : plan_.flats_of_unit[operation.place]) {
    if (!plan_.flats[f].trainable) continue;
    const int64_t part_bytes = shard_bytes(plan_.flats[f], plan_.policy.precision.compute);
    ranks_.all_gather_in_place(lane, memory_.range(Role::kParameters, f, Touch::kReadsAndWrites), part_bytes, label);
  }
}

void StepWork::matrices(Stream& lane, const Operation& operation, const UpdateSteps& steps, Label label) {
  if (!std::isfinite(steps.blend.gradient_factor)) return memory_.skip_operation();
  const int32_t group = operation.place;
  if (operation.verb == Verb::kCollect) return matrices_->collect(lane, group, label);
  if (operation.verb == Verb::kOrthogonalize) return matrices_->orthogonalize(lane, group);
  if (operation.verb == Verb::kScatter) return matrices_->scatter(lane, group, label);
  for (const int32_t f : plan_.matrix_groups[group].flats) updater_.blend(lane, f, steps);
}

void StepWork::update(Stream& lane, UnitId unit, const UpdateSteps& steps) {
  updater_.update(lane, unit, steps);
  if (plan_.policy.update_in_backward) return;
  for (const int32_t f : plan_.flats_of_unit[unit]) {
    std::byte* carried = memory_.address(Role::kCarried, f, Touch::kWrites);
    if (carried != nullptr && steps.forgets_carried)
      kernels_.fill(lane, carried, DType::kUInt8, 0.0f, needed_bytes(plan_, Role::kCarried, f));
  }
}

NormResult StepWork::norm(Stream& lane, bool abandons, Label label) {
  norm_->exchange(lane, memory_, abandons, label);
  lane.synchronize();  // the host decides what every update does
  return norm_->finish(memory_);
}

void StepWork::open_use(Stream& compute, OperationId use, bool all) {
  clear_gradients(compute, use, all);
  if (red_zones_) red_zones_->fill(compute, use);
}

void StepWork::close_use(Stream& compute, OperationId use) {
  if (red_zones_) red_zones_->compare(compute, use);
  const Operation& operation = plan_.schedule.operations[use];
  if (operation.verb != Verb::kBackward) return;
  for (const UnitId unit : plan_.model.uses[operation.place]) {
    for (const int32_t f : plan_.flats_of_unit[unit]) {
      if (plan_.flats[f].trainable) clear_padding(compute, f);
    }
  }
}

void StepWork::clear_gradients(Stream& compute, OperationId backward, bool all) {
  for (const int32_t flat : added_to_[backward]) memory_.touch(Role::kGradients, flat, Touch::kReads);
  for (const int32_t flat : first_writes_[backward]) {
    const FlatSpec& spec = plan_.flats[flat];
    if (!all && plan_.model.units[spec.unit].gradients == GradientMode::kAssign) continue;
    kernels_.fill(compute, memory_.address(Role::kGradients, flat, Touch::kWrites), plan_.policy.precision.gradients,
                  0.0f, spec.layout.flat_count());
  }
}

void StepWork::clear_padding(Stream& compute, int32_t flat) {
  const DType dtype = plan_.policy.precision.gradients;
  std::byte* gradients = memory_.address(Role::kGradients, flat, Touch::kWrites);
  for (const Gap& gap : padding_[flat])
    kernels_.fill(compute, gradients + gap.begin * element_bytes(dtype), dtype, 0.0f, gap.end - gap.begin);
}

}  // namespace aliquot
