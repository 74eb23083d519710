#include "engine/executor.h"

#include "kernels/kernels.h"

namespace aliquot {
namespace {

bool is_model_code(Verb verb) { return verb == Verb::kForward || verb == Verb::kBackward; }

}  // namespace

Executor::Executor(const Parts& parts)
    : plan_(parts.plan),
      world_(parts.world),
      memory_(parts.memory),
      updater_(parts.updater),
      decision_(parts.decision),
      norm_(parts.plan, parts.world.communicator()),
      progress_base_(parts.world.progress_base()) {
  const std::size_t count = plan_.schedule.operations.size();
  for (int lane = 0; lane < kLaneCount; ++lane) streams_[lane] = world_.device().make_stream(static_cast<Lane>(lane));
  begins_.resize(count);
  ends_.resize(count);
  for (BufferId b = 0; b < static_cast<BufferId>(plan_.schedule.buffers.size()); ++b) {
    const PlannedBuffer& buffer = plan_.schedule.buffers[b];
    if (buffer.always) continue;
    begins_[buffer.first].push_back(b);
    ends_[buffer.last].push_back(b);
  }
  note_observed_operations();
  note_first_writes();
}

Executor::~Executor() { world_.set_progress_base(progress(0, step_ + 1)); }

void Executor::note_observed_operations() {
  const auto& operations = plan_.schedule.operations;
  observed_here_.assign(operations.size(), false);
  observed_by_all_.assign(operations.size(), false);
  for (const Operation& operation : operations) {
    for (const Wait& wait : operation.after) (wait.on_all ? observed_by_all_ : observed_here_)[wait.operation] = true;
  }
  events_.resize(operations.size());
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (observed_here_[i]) events_[i] = world_.device().make_event();
    if (is_model_code(operations[i].verb)) first_after_passes_ = static_cast<OperationId>(i) + 1;
  }
  while (operations[first_after_passes_].verb != Verb::kNorm) ++first_after_passes_;
}

void Executor::note_first_writes() {
  const auto& operations = plan_.schedule.operations;
  first_writes_.resize(operations.size());
  std::vector<bool> written(plan_.model.units.size(), false);
  first_reduce_.assign(plan_.model.units.size(), -1);
  last_reduce_.assign(plan_.model.units.size(), -1);
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    const Operation& operation = operations[id];
    if (operation.verb == Verb::kReduce) {
      written[operation.place] = false;
      if (first_reduce_[operation.place] < 0) first_reduce_[operation.place] = id;
      last_reduce_[operation.place] = id;
    }
    if (operation.verb != Verb::kBackward) continue;
    for (const UnitId unit : plan_.model.uses[operation.place]) {
      if (written[unit]) continue;
      written[unit] = true;
      for (const int32_t f : plan_.flats_of_unit[unit]) {
        if (plan_.flats[f].trainable) first_writes_[id].push_back(f);
      }
    }
  }
}

bool Executor::at_model_code() const { return is_model_code(operation(cursor_).verb); }

void Executor::run_to_model_code() {
  while (!at_model_code() && !at_end_of_passes()) issue(cursor_++);
}

void Executor::open() {
  begin(cursor_);
  for (const int32_t flat : first_writes_[cursor_]) clear_gradients(flat);
}

void Executor::close() {
  end(cursor_++);
  run_to_model_code();
}

void Executor::finish_step() {
  const auto count = static_cast<OperationId>(plan_.schedule.operations.size());
  while (cursor_ < count) issue(cursor_++);
  cursor_ = 0;
  ++step_;
}

void Executor::issue(OperationId id) {
  begin(id);
  run(id);
  end(id);
}

/// Grows from step to step and, within a step, from operation to operation, as progress on a lane must.
uint64_t Executor::progress(OperationId id, int64_t step) const {
  return progress_base_ + static_cast<uint64_t>(step) * plan_.schedule.operations.size() + static_cast<uint64_t>(id);
}

Label Executor::label(const Operation& operation) const {
  if (operation.verb == Verb::kNorm) return {"norm", step_};
  const bool by_use = is_model_code(operation.verb);
  const UnitId unit = by_use ? plan_.model.uses[operation.place].front() : operation.place;
  return {plan_.model.units[unit].name, step_};
}

void Executor::begin(OperationId id) {
  const Operation& what = operation(id);
  Stream& lane = stream(what.lane);
  for (const Wait& wait : what.after) {
    if (!wait.on_all) {
      lane.wait(*events_[wait.operation]);
      continue;
    }
    const int64_t step = wait.of_previous_step ? step_ - 1 : step_;
    if (step == 0) continue;  // before the first step everybody met once
    world_.communicator().await(lane, operation(wait.operation).lane, progress(wait.operation, step), label(what));
  }
  for (const BufferId buffer : begins_[id]) memory_.acquire(buffer);
}

void Executor::end(OperationId id) {
  Stream& lane = stream(operation(id).lane);
  if (observed_here_[id]) lane.record(*events_[id]);
  if (observed_by_all_[id]) world_.communicator().publish(lane, progress(id, step_));
  for (const BufferId buffer : ends_[id]) memory_.release(buffer);
}

void Executor::run(OperationId id) {
  const Operation& what = operation(id);
  switch (what.verb) {
    case Verb::kGather: return gather(what);
    case Verb::kReduce: return reduce(id, what);
    case Verb::kSpread: return spread(what);
    case Verb::kPublish: return publish(what);
    case Verb::kUpdate: return updater_.update(stream(what.lane), what.place, update_step_);
    case Verb::kNorm:
      norm_.exchange(stream(what.lane), memory_, label(what));
      stream(what.lane).synchronize();  // the host decides what every update does
      update_step_ = decision_.decide(norm_.finish(memory_));
      return;
    case Verb::kForward:
    case Verb::kBackward:
    case Verb::kRelease: return;  // the model's own, and what begin() and end() do
  }
}

void Executor::gather(const Operation& operation) {
  if (plan_.schedule.view) return;
  for (const int32_t f : plan_.flats_of_unit[operation.place]) {
    const int64_t part_bytes = plan_.flats[f].layout.shard_count() * static_cast<int64_t>(sizeof(float));
    world_.communicator().all_gather(stream(operation.lane), memory_.range(Role::kGathered, f),
                                     memory_.range(Role::kParameters, f), part_bytes, label(operation));
  }
}

void Executor::reduce(OperationId id, const Operation& operation) {
  Stream& lane = stream(operation.lane);
  const Kernels& kernels = world_.device().kernels();
  const bool first = first_reduce_[operation.place] == id, last = last_reduce_[operation.place] == id;
  for (const int32_t f : plan_.flats_of_unit[operation.place]) {
    if (!plan_.flats[f].trainable) continue;
    const int64_t count = plan_.flats[f].layout.shard_count();
    auto* squares = last ? reinterpret_cast<double*>(memory_.address(Role::kSquares, f)) : nullptr;
    auto* sum = reinterpret_cast<float*>(memory_.address(Role::kReduced, f));
    if (sum == nullptr) sum = reinterpret_cast<float*>(memory_.address(Role::kGradients, f)) + world_.rank() * count;
    auto* partial = reinterpret_cast<float*>(memory_.address(Role::kPartial, f));
    world_.communicator().reduce_scatter(lane,
                                         {.from = memory_.range(Role::kGradients, f),
                                          .to = first ? sum : partial,
                                          .part_count = count,
                                          .block_squares = first ? squares : nullptr},
                                         label(operation));
    if (first) continue;
    kernels.add(lane, sum, partial, count);
    if (last) kernels.block_squares(lane, squares, sum, count);
  }
}

void Executor::spread(const Operation& operation) {
  for (const int32_t f : plan_.flats_of_unit[operation.place]) {
    if (!plan_.flats[f].trainable) continue;
    const int64_t part_bytes = plan_.flats[f].layout.shard_count() * static_cast<int64_t>(sizeof(float));
    const SymmetricRange whole = memory_.range(Role::kGradients, f);
    if (memory_.current(Role::kReduced, f) == kNoBuffer) {
      world_.communicator().all_gather_in_place(stream(operation.lane), whole, part_bytes, label(operation));
    } else {
      world_.communicator().all_gather(stream(operation.lane), whole, memory_.range(Role::kReduced, f), part_bytes,
                                       label(operation));
    }
  }
}

void Executor::publish(const Operation& operation) {
  for (const int32_t f : plan_.flats_of_unit[operation.place]) {
    if (!plan_.flats[f].trainable) continue;
    const int64_t part_bytes = plan_.flats[f].layout.shard_count() * static_cast<int64_t>(sizeof(float));
    world_.communicator().all_gather_in_place(stream(operation.lane), memory_.range(Role::kParameters, f), part_bytes,
                                              label(operation));
  }
}

/// Kernels that add start from zeros. Kernels that assign leave what lies between tensors, which would reach the norm.
void Executor::clear_gradients(int32_t flat) {
  const FlatSpec& spec = plan_.flats[flat];
  Stream& compute = stream(Lane::kCompute);
  auto* gradients = reinterpret_cast<float*>(memory_.address(Role::kGradients, flat));
  const Kernels& kernels = world_.device().kernels();
  if (plan_.model.units[spec.unit].gradients == GradientMode::kAdd) {
    kernels.fill(compute, gradients, DType::kFloat32, 0.0f, spec.layout.flat_count());
    return;
  }
  int64_t end = 0;
  for (int32_t t = 0; t < static_cast<int32_t>(spec.layout.tensors().size()); ++t) {
    kernels.fill(compute, gradients + end, DType::kFloat32, 0.0f, spec.layout.tensor_offset(t) - end);
    end = spec.layout.tensor_offset(t) + spec.layout.tensors()[t].element_count();
  }
  kernels.fill(compute, gradients + end, DType::kFloat32, 0.0f, spec.layout.flat_count() - end);
}

}  // namespace aliquot
