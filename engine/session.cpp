// Construction of a session, switches between training and evaluation, streams and timelines.
#include "engine/session.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "kernels/system/error.h"
#include "sharding/comm/collective_purpose.h"

namespace aliquot {

Session::Session(Parts parts)
    : world_(parts.world),
      options_(parts.options),
      recompute_(parts.recompute),
      decider_(parts.decider),
      plan_(std::move(parts.plan)),
      evaluation_(std::move(parts.evaluation)),
      replay_plan_(std::move(parts.replay)),
      groups_(world_, plan_->mesh()),
      offload_stores_(*plan_, world_, {options_.offload_state_to, options_.offload_parameters_to}),
      view_(world_.device(), offload_stores_),
      arena_(*plan_, secondary_plans(), groups_),
      memory_(memory_of(*plan_)),
      addresses_(*plan_, memory_, arena_, groups_.coordinates().tensor, parts.slots),
      weights_(*plan_, memory_, view_, groups_.shard_group().rank()),
      digests_(*plan_, groups_, memory_, view_),
      updater_({*plan_, memory_, weights_, view_, digests_, groups_.shard_group().rank(), groups_.coordinates().tensor},
               options_.optimizer, options_.moments),
      bindings_(*plan_, parts.slots, groups_.coordinates().tensor),
      state_({*plan_, groups_, offload_stores_, view_, memory_, weights_, updater_}),
      faults_(make_fault_injector(
          world_, {*plan_, memory_, weights_, view_, updater_, world_.device(), groups_.coordinates().tensor})),
      gradient_detector_(*plan_, memory_, world_.device()),
      executor_(executor_of(*plan_, memory_)),
      evaluation_run_(*this, evaluation_, parts.slots),
      recomputed_(recomputed_uses(*plan_)) {
  if (replay_plan_) {
    replay_.emplace(*this, *replay_plan_, parts.slots);
    replay_->executor.set_computes_digests(true);
    replay_faults_ = make_fault_injector(world_, {*replay_plan_, replay_->memory, weights_, view_, updater_,
                                                  world_.device(), groups_.coordinates().tensor});
    replay_->executor.set_faults(replay_faults_.get());
    replay_check_.emplace(*plan_, groups_, memory_, view_);
    sum_check_.emplace(*plan_, groups_, memory_, view_);
  }
  std::vector<const Plan*> plans = secondary_plans();
  plans.push_back(plan_.get());
  for (const Plan* plan : plans) {
    for (const Operation& operation : plan->schedule.operations) {
      if (operation.lane != Lane::kCompute) make_lane(operation.lane);
    }
  }
  agree_on_graph(parts.compute_stream.get());
  // The compute stream is moved last, so that the caller still owns it if the creation of another stream throws.
  if (parts.compute_stream) {
    compute_lane() = std::move(parts.compute_stream);
  } else {
    make_lane(Lane::kCompute);
  }
  executor_.set_faults(faults_.get());
  executor_.set_gradient_detector(&gradient_detector_);
}

Session::SecondaryRun::SecondaryRun(Session& session, const Plan& plan,
                                    const std::vector<std::vector<PointerSlots>>& slots)
    : memory(session.memory_of(plan), false),
      addresses(plan, memory, session.arena_, session.groups_.coordinates().tensor, slots),
      executor(session.executor_of(plan, memory)) {}

std::vector<const Plan*> Session::secondary_plans() const {
  std::vector<const Plan*> plans = {&evaluation_};
  if (replay_plan_) plans.push_back(&*replay_plan_);
  return plans;
}

Session::~Session() {
  World::ProgressPublisher& publisher = world_.progress_publisher();
  const bool is_replay = replay_ && publisher.executor == &replay_->executor;
  if (publisher.executor != &executor_ && publisher.executor != &evaluation_run_.executor && !is_replay) return;
  publisher = {.base = std::max(publisher.base, active_->progress_end())};
}

StepMemory::Parts Session::memory_of(const Plan& plan) const {
  return {plan, arena_, offload_stores_, world_.device().ledger(), groups_.shard_group().rank()};
}

Executor::Parts Session::executor_of(const Plan& plan, StepMemory& memory) {
  return {plan,     groups_,           lanes_, arena_, memory, offload_stores_, view_, updater_, digests_,
          decider_, options_.optimizer};
}

/// Creates the stream of a lane. On hosts a stream has a thread, so lanes without operations get no stream.
void Session::make_lane(Lane lane) {
  auto& stream = lanes_[static_cast<std::size_t>(lane)];
  if (!stream) stream = world_.device().make_stream(lane);
}

ModelAddresses& Session::addresses() {
  if (evaluates()) return evaluation_run_.addresses;
  return is_replay() ? replay_->addresses : addresses_;
}

std::unique_ptr<Stream> Session::release_compute_stream() { return std::move(compute_lane()); }

void Session::resume(std::unique_ptr<Stream> compute_stream) {
  compute_lane() = std::move(compute_stream);
  guard_pointers();
}

/// A world may have several engines, and each has an executor for training and one for evaluation. Only one executor
/// uses the communicator at a time. Waits until all ranks have finished the previous work. Then `next` may use the
/// communicator. Throws UsageError if another engine of the world has an unfinished step.
Executor& Session::activate(Executor& next) {
  World::ProgressPublisher& publisher = world_.progress_publisher();
  if (publisher.executor == &next) return next;
  if (publisher.finish) {
    const ScopedCollectivePurpose purpose(&next == &evaluation_run_.executor ? "begin an evaluation" : "begin a step");
    publisher.base = std::max(publisher.base, publisher.finish());
    world_.communicator().gather_objects("turn");
  }
  next.start_after_barrier(publisher.base);
  publisher.executor = &next;
  publisher.finish = [this, &next] {
    if (!next.at_start_of_step()) throw UsageError("another engine of this world is in a step: finish that step first");
    wait_until_idle();
    return next.progress_end();
  };
  active_ = &next;
  return next;
}

void Session::wait_until_idle() const {
  for (const auto& lane : lanes_) {
    if (lane) lane->synchronize();
  }
  digests_.throw_if_found();
}

const ShardedState& Session::changeable_state() {
  compare_digests();
  digests_.expect_changes();
  return state_;
}

void Session::compare_digests() const { digests_.compare_all(updater_, decider_.step_count()); }

void Session::require_nothing_live() const {
  if (live_units_.empty()) return;
  throw UsageError(
      fmt::format("the scope of unit {} is still open: close it first", plan_->model.units[live_units_.front()].name));
}

void Session::require_between_steps(std::string_view call) const {
  require_nothing_live();
  const bool replayed = replay_progress_ != ReplayProgress::kNone;
  if (micro_batch_ < 0 && !abandoned_ && !replayed && active_->at_start_of_step()) return;
  throw UsageError(fmt::format("{} must be called between steps: the current step is not finished", call));
}

void Session::finish_pending() {
  if (unusable_) throw FaultError("this engine cannot be used after a failure: create a new engine");
  unusable_ = failure_ != nullptr;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  if (evaluates() && abandoned_) {
    if (!evaluation_run_.executor.at_start_of_step()) {
      skip_rest_of_passes();
      evaluation_run_.executor.finish_step();
    }
    abandoned_ = false;
    in_evaluation_ = false;
  }
  if (omission_) std::rethrow_exception(std::exchange(omission_, nullptr));
}

void Session::sum_losses(std::span<double> values) {
  require_nothing_live();
  if (micro_batch_ >= 0 && !abandoned_ && !executor_.at_end_of_passes())
    throw UsageError("sum_losses() must not be called between two passes of a step");
  if (abandoned_ && !evaluates()) finish_abandoned_passes();  // other ranks wait for the transfers of these passes
  Stream& stream = compute_stream();
  const bool counts = plan_->stage.is_last() && groups_.coordinates().tensor == 0;
  if (!counts) std::ranges::fill(values, 0.0);
  for (const GroupId group : {GroupId::kStage, GroupId::kPipeline}) {
    if (groups_.mesh().size(group) == 1) continue;
    groups_.at(group).all_reduce(stream, values, Reduction::kSum, {"losses"});
    stream.synchronize();
  }
}

void Session::record_timelines() {
  if (recorder_) return;
  recorder_.emplace(*plan_, world_.device());
  executor_.set_recorder(&*recorder_);
  graphs_ = {};  // they set no marks
  recorded_from_ = executor_.step();
}

Timeline Session::timeline(double* began) {
  require_between_steps("timeline()");
  const int64_t last = executor_.step() - 1;
  if (!recorder_ || last < recorded_from_ + 2) return {};
  wait_until_idle();
  return recorder_->timeline(last, began);
}

}  // namespace aliquot
