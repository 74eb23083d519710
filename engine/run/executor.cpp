#include "engine/run/executor.h"

#include <algorithm>
#include <cassert>
#include <fmt/format.h>

#include "engine/plan/use_collectives.h"
#include "kernels/system/fault_point.h"
#include "kernels/system/log_message.h"
#include "sharding/flight/flight_recorder.h"

namespace aliquot {

Executor::Executor(const Parts& parts)
    : plan_(parts.plan),
      world_(parts.groups.world()),
      groups_(parts.groups),
      lanes_(parts.lanes),
      memory_(parts.memory),
      decision_(parts.decision),
      work_({parts.plan, parts.groups, parts.arena, parts.memory, parts.offload_stores, parts.view, parts.updater,
             parts.digests, parts.optimizer}),
      skips_(parts.plan, parts.groups) {
  const std::size_t count = plan_.schedule.operations.size();
  begins_.resize(count);
  ends_.resize(count);
  for (BufferId b = 0; b < static_cast<BufferId>(plan_.schedule.buffers.size()); ++b) {
    const PlannedBuffer& buffer = plan_.schedule.buffers[b];
    if (buffer.always) continue;
    begins_[buffer.first].push_back(b);
    ends_[buffer.last].push_back(b);
  }
  for (const Operation& operation : plan_.schedule.operations) {
    const auto units = units_of(plan_, operation);
    std::string_view label = units.empty() ? name(operation.verb) : plan_.model.units[units.front()].name;
    if (is_transfer(operation.verb)) label = made_labels_.emplace_back(transfer_label(operation, label));
    if (operation.verb == Verb::kUseCollective)
      label = made_labels_.emplace_back(fmt::format("{} {}", label, collective_of(plan_.model, operation).name));
    labels_.push_back(label);
  }
  note_observed_operations();
  if (world_.device().kind() == DeviceKind::kHost) return;
  compute_point_ = world_.device().make_event();
  for (auto& point : lane_points_) point = world_.device().make_event();
  std::vector<std::string> titles;
  for (OperationId id = 0; id < static_cast<OperationId>(count); ++id) titles.push_back(title(plan_, id));
  ranges_.emplace(titles);
}

/// Ends the ranges of operations that have thrown.
Executor::~Executor() {
  while (open_ranges_ > 0) end_range();
}

/// Names both pipeline stages and the micro-batch, in short form: a LaneBoard truncates labels after 40 characters. The
/// unit name comes last.
std::string Executor::transfer_label(const Operation& operation, std::string_view unit) const {
  const int own = plan_.stage.index, count = plan_.stage.count;
  const int other = (own + (operation.group == GroupId::kNextStage ? 1 : count - 1)) % count;
  const bool sends = is_send(operation.verb);
  return fmt::format("pipeline stage {} to {}, m{}, {}", sends ? own : other, sends ? other : own,
                     operation.micro_batch, unit);
}

void Executor::note_observed_operations() {
  const auto& operations = plan_.schedule.operations;
  observed_here_.assign(operations.size(), false);
  for (auto& observed : observed_by_peers_) observed.assign(operations.size(), false);
  for (const Operation& operation : operations) {
    for (const Wait& wait : operation.after) {
      (wait.of == GroupId::kRank ? observed_here_ : observed_by_peers_[peer_index(wait.of)])[wait.operation] = true;
    }
  }
  events_.resize(operations.size());
  const bool on_gpu = world_.device().kind() == DeviceKind::kCuda;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const auto observed = [&](const std::vector<bool>& by) { return by[i]; };
    if (observed_here_[i] || (on_gpu && std::ranges::any_of(observed_by_peers_, observed)))
      events_[i] = world_.device().make_event();
    if (is_model_code(operations[i].verb)) first_after_passes_ = static_cast<OperationId>(i) + 1;
  }
  const auto count = static_cast<OperationId>(operations.size());
  while (first_after_passes_ < count && operations[first_after_passes_].verb != Verb::kNorm) ++first_after_passes_;
}

void Executor::start_after_barrier(uint64_t base) {
  progress_base_ = base;
  first_step_ = step_;
}

void Executor::run_to_model_code() {
  while (!at_end_of_passes() && !at_model_code()) {
    issue(cursor_);
    ++cursor_;
  }
}

void Executor::open(bool skips_model_code) {
  open_ = cursor_;
  report_position_on_failure([&] {
    begin_range(cursor_);
    begin(cursor_);
    Stream& compute = stream(Lane::kCompute);
    if (computes_digests_ && plan_.stage.count > 1 && operation(cursor_).micro_batch == 0)
      work_.clear_sent(compute, cursor_);
    work_.open_use(compute, cursor_, skips_model_code);
    if (!skips_model_code) return;
    memory_.skip_operation();
    skips_.note(cursor_);
  });
}

void Executor::run_collective() {
  report_position_on_failure([&] {
    memory_.end_operation();
    announce_end(cursor_);
    ++cursor_;
    assert(operation(cursor_).verb == Verb::kUseCollective);
    Stream& lane = stream(Lane::kCompute);
    FlightRecorder* flight = world_.flight();
    if (flight != nullptr) flight->end_model_code();  // on hosts, this rank waits in the collective
    begin_range(cursor_);
    begin(cursor_);
    work_.use_collective(lane, operation(cursor_), label(cursor_));
    end_range();
    const Operation& code = operation(open_);
    if (flight != nullptr) flight->begin_model_code(name(code.verb), label(open_), code.micro_batch);
    memory_.skip_operation();  // the model code that follows makes the other accesses
    end_work(cursor_);
  });
}

void Executor::close() {
  report_position_on_failure([&] {
    work_.close_use(stream(Lane::kCompute), open_);
    memory_.end_operation();
    end_work(open_);
    announce_end(cursor_);  // the model code, or its last collective
    end_range();
  });
  ++cursor_;
  run_to_model_code();
}

void Executor::finish_step(bool abandons) {
  abandons_ = abandons;
  const auto count = static_cast<OperationId>(plan_.schedule.operations.size());
  for (; cursor_ < count; ++cursor_) issue(cursor_);
  cursor_ = 0;
  decided_ = false;
  work_.begin_step();
  skips_.begin_step();
  ++step_;
}

void Executor::discard_step() {
  cursor_ = 0;
  ++step_;
}

void Executor::issue(OperationId id) {
  report_position_on_failure([&] {
    begin_range(id);
    begin(id);
    run(id);
    memory_.end_operation();
    end_work(id);
    announce_end(id);
    end_range();
  });
}

/// Called while an exception is handled. Records the position of this rank in the schedule. After a communication
/// error, each rank also logs its position, because the positions of all ranks show which rank waited for which.
void Executor::report_position() {
  const std::string place = note_position();
  try {
    throw;
  } catch (const CommunicationError&) {
    log_message("rank {} was at {}", world_.rank(), place);
  } catch (...) {  // only the position is recorded
  }
}

/// Stores in the flight record where this rank is in the schedule, and returns that text.
std::string Executor::note_position() const {
  const std::string place =
      in_graph_ ? fmt::format("the graph of all passes (step {})", reported_step_)
                : fmt::format("{} (operation {} of {}, micro-batch {}, step {})", title(plan_, cursor_), cursor_,
                              plan_.schedule.operations.size(), operation(cursor_).micro_batch, reported_step_);
  if (world_.flight() != nullptr) world_.flight()->set_failure_location(place);
  return place;
}

/// The progress value of an operation. It increases from operation to operation and from step to step, because waits
/// compare progress values.
uint64_t Executor::progress(OperationId id, int64_t step) const {
  return progress_base_ + static_cast<uint64_t>(step - first_step_ + 1) * plan_.schedule.operations.size() +
         static_cast<uint64_t>(id);
}

void Executor::begin(OperationId id) {
  const Operation& what = operation(id);
  Stream& lane = stream(what.lane);
  for (const Wait& wait : what.after) wait_for(wait, id);
  for (const BufferId buffer : begins_[id]) memory_.acquire(buffer);
  memory_.begin_operation(id);
  if (recorder_ != nullptr) recorder_->begin(lane, id, step_);
  const bool is_recorded = is_model_code(what.verb) && world_.flight() != nullptr;
  if (is_recorded) world_.flight()->begin_model_code(name(what.verb), label(id), what.micro_batch);
  if (faults_ != nullptr) faults_->before(lane, id, reported_step_);
  if (gradient_detector_ != nullptr) gradient_detector_->before(lane, id);
  if (random_faults_enabled()) inject_random_fault(lane, what.verb);
}

/// Enqueues a wait of operation `id`. Omits a wait if other waits already guarantee the order.
void Executor::wait_for(const Wait& wait, OperationId id) {
  Stream& lane = stream(operation(id).lane);
  const int64_t step = wait.of_previous_step ? step_ - 1 : step_;
  if (step < first_step_) return;                   // all ranks have passed a barrier since then
  if (captures() && wait.of_previous_step) return;  // launch() waits for the work of all lanes
  // launch() has made all lanes wait for the graph, and the graph for all earlier work.
  const bool in_passes = wait.operation < first_after_passes_;
  if (in_passes && (step == graph_step_ || step_ == graph_step_)) return;
  if (wait.of == GroupId::kRank || captures()) return lane.wait(*events_[wait.operation]);
  groups_.at(wait.of).await(lane, operation(wait.operation).lane, progress(wait.operation, step), label(id));
}

/// Passes two fault points: one on the rank's thread, and one in the work of the lane.
void Executor::inject_random_fault(Stream& lane, Verb verb) const {
  fault_point(world_.rank(), fmt::format("issue of {}", name(verb)));
  lane.run([rank = world_.rank(), verb] { fault_point(rank, name(verb)); });
}

void Executor::begin_range(OperationId id) {
  if (!ranges_) return;
  ranges_->push(static_cast<std::size_t>(id));
  ++open_ranges_;
}

void Executor::end_range() {
  if (!ranges_) return;
  ranges_->pop();
  --open_ranges_;
}

/// Called after the work of an operation. For model code, also after the collectives of the use.
void Executor::end_work(OperationId id) {
  Stream& lane = stream(operation(id).lane);
  if (is_model_code(operation(id).verb) && world_.flight() != nullptr) world_.flight()->end_model_code();
  if (faults_ != nullptr) faults_->after(lane, id, reported_step_);
  if (recorder_ != nullptr) recorder_->end(lane, id, step_);
}

/// Tells other lanes and ranks that an operation has ended, and ends buffers. Waits for the code of a use refer to its
/// last collective, so model code with collectives announces its end before the first one.
void Executor::announce_end(OperationId id) {
  Stream& lane = stream(operation(id).lane);
  if (observed_here_[id] || (captures() && events_[id] != nullptr)) lane.record(*events_[id]);
  for (const GroupId group : kPeerGroups) {
    if (observed_by_peers_[peer_index(group)][id] && !captures()) groups_.at(group).publish(lane, progress(id, step_));
  }
  for (const BufferId buffer : ends_[id]) memory_.release(buffer);
}

void Executor::run(OperationId id) {
  const Operation& what = operation(id);
  Stream& lane = stream(what.lane);
  switch (what.verb) {
    case Verb::kGatherQuantizedShards: return work_.gather_quantized_shards(lane, what, label(id));
    case Verb::kGather: return work_.gather(lane, what, label(id));
    case Verb::kSendActivations:
    case Verb::kSendGradients:
      if (computes_digests_ && what.micro_batch == 0) work_.sum_sent(lane, id);
      return work_.transfer(lane, id, label(id));
    case Verb::kReceiveActivations:
    case Verb::kReceiveGradients: return work_.transfer(lane, id, label(id));
    case Verb::kReduce: return work_.reduce(lane, id, label(id));
    case Verb::kSumOverTensor: return work_.sum_over_tensor(lane, what, label(id));
    case Verb::kReplicaAllReduce: return work_.replica_all_reduce(lane, id, label(id));
    case Verb::kAllGatherGradients: return work_.all_gather_gradients(lane, what, label(id));
    case Verb::kAllGatherParameters: return work_.all_gather_parameters(lane, what, label(id));
    case Verb::kMuonMomentum:
    case Verb::kGatherMatrices:
    case Verb::kOrthogonalize:
    case Verb::kScatterMatrices: return work_.matrices(lane, what, update_steps_, label(id));
    case Verb::kUpdate: return update(what);
    case Verb::kCompareState: return work_.compare_state(lane, what, label(id));
    case Verb::kDigestGradients:
      return computes_digests_ ? work_.digest_gradients(lane, what.operand) : memory_.skip_operation();
    case Verb::kCopyIn:
    case Verb::kCopyOut: return work_.copy(lane, id);
    case Verb::kUseCollective: work_.use_collective(lane, what, label(id)); return memory_.skip_operation();
    case Verb::kNorm: return norm(lane, id);
    default:  // kRelease has no work: the model code has made its accesses
      assert(info(what.verb).actor != Actor::kEngine);
      return memory_.skip_operation();
  }
}

/// Called after the norm has waited for the last backward. At that point, the updates of the previous step have ended,
/// and so has their comparison of the state. A difference is therefore thrown before the updates of this step, except
/// with update_in_backward.
void Executor::throw_if_state_differs() {
  if (!work_.has_found_difference()) return;
  for (const auto& lane : lanes_) {
    if (lane) lane->synchronize();
  }
  work_.throw_if_found_difference();
}

void Executor::norm(Stream& lane, OperationId id) {
  const NormResult norm = work_.norm(lane, abandons_, label(id));
  throw_if_state_differs();
  if (norm.abandoned_by < 0) skips_.check(lane, label(id));
  update_steps_ = decision_.decide(norm);
}

void Executor::update(const Operation& operation) {
  if (plan_.policy.update_in_backward && !decided_) {
    update_steps_ = decision_.decide_before_norm();
    decided_ = true;
  }
  work_.update(stream(operation.lane), operation.operand, update_steps_);
}

}  // namespace aliquot
