// Engine::materialize(), which allocates memory and initializes parameters, and functions that access the state.
#include <fmt/format.h>

#include "engine/engine.h"
#include "engine/options/nearest.h"
#include "engine/run/memory/fault_names.h"
#include "engine/session.h"
#include "kernels/system/error.h"
#include "sharding/comm/collective_purpose.h"

namespace aliquot {
namespace {

[[noreturn]] void refuse_unknown_parameter(std::string_view name, const ModelSpec& model) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) names.push_back(parameter.tensor.name);
  }
  const std::string near = did_you_mean(name, names, "");
  throw UsageError(fmt::format("read(): there is no parameter {}{}", name,
                               near.empty() ? ": expected the name of a declared parameter" : "." + near));
}

}  // namespace

Session& Engine::session(std::string_view call) const {
  if (!session_) throw UsageError(fmt::format("call materialize() before {}", call));
  session_->finish_pending();
  return *session_;
}

Session& Engine::idle_session(std::string_view call) const {
  Session& session = this->session(call);
  session.require_between_steps(call);
  session.wait_until_idle();  // the last all-gather of parameters may still be running
  return session;
}

std::unique_ptr<Session> Engine::make_session(SecondaryPlans others) {
  if (options_.check) install_fault_names();
  std::vector<std::vector<PointerSlots>> slots;
  for (const UnitDeclaration& declared : declared_) slots.push_back(declared.slots);
  return std::make_unique<Session>(Session::Parts{.world = world_,
                                                  .options = options_,
                                                  .recompute = recompute_,
                                                  .decider = *decider_,
                                                  .plan = {stages_, &(*stages_)[own_stage()]},
                                                  .evaluation = std::move(others.evaluation),
                                                  .replay = std::move(others.replay),
                                                  .slots = std::move(slots),
                                                  .compute_stream = compute_stream_});
}

void Engine::materialize(const Initialize& initialize) {
  if (session_) throw UsageError("materialize() was called twice: expected one call for each engine");
  if (!initialize) throw UsageError("materialize() needs a function that sets the initial values of parameters");
  const ScopedCollectivePurpose purpose("materialize an engine");
  session_ = make_session(agreed_plans(pipeline_plans()));
  try {
    session_->state().initialize(initialize);
  } catch (...) {  // a partly initialized session must not be used for training
    compute_stream_ = session_->release_compute_stream();
    session_.reset();
    throw;
  }
  world_.communicator().gather_objects(
      "materialized");  // barrier: all shards are initialized before any rank reads them
}

State Engine::state() {
  Session& session = idle_session("state()");
  State state{.step = 0, .tensors = session.changeable_state().tensors(), .scalars = {}};
  decider_->save(state);
  return state;
}

void Engine::adopt(const State& state) {
  session("adopt()").require_between_steps("adopt()");
  const ScopedCollectivePurpose purpose("adopt a state");
  const StepDecider::Counts counts = decider_->counts_in(state);
  // Checks that all ranks resume from the same step. The gather is also a barrier: no rank reads another rank's shard
  // before that shard is loaded.
  const auto all = world_.communicator().gather_objects(counts.text());
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    throw UsageError(
        fmt::format("the states passed to adopt() differ: rank {} has \"{}\", rank 0 has \"{}\"", r, all[r], all[0]));
  }
  decider_->resume(counts);
  session_->wait_until_idle();
  session_->state().clear_residuals();
}

void Engine::check_copies() {
  const Session& session = idle_session("check_copies()");
  const ScopedCollectivePurpose purpose("compare copies", step_count());
  session.compare_digests();
  world_.communicator().gather_objects("at rest");  // barrier: other ranks have finished writing to this rank's memory
  const std::string difference = session.state().difference();
  if (difference.empty()) return;
  throw FaultError(
      fmt::format("silent data corruption, found after step {}: {}; resume from an earlier checkpoint, and test the "
                  "memory of the affected machine",
                  step_count(), difference));
}

void Engine::read(std::string_view parameter, const ValuesCallback& take) {
  const ShardedState& state = idle_session("read()").state();
  const auto tensor = state.parameter(parameter);
  if (!tensor) refuse_unknown_parameter(parameter, plan().model);
  state.stream().run(fmt::format("reading {}", parameter), *tensor,
                     [&](int64_t first, std::span<const std::byte> elements) {
                       take(first, {reinterpret_cast<const float*>(elements.data()), elements.size() / sizeof(float)});
                     });
}

std::vector<float> Engine::read(std::string_view parameter) {
  std::vector<float> whole;
  if (session_) {
    if (const auto tensor = session_->state().parameter(parameter))
      whole.reserve(static_cast<std::size_t>(tensor->element_count()));
  }
  read(parameter,
       [&](int64_t, std::span<const float> values) { whole.insert(whole.end(), values.begin(), values.end()); });
  return whole;
}

}  // namespace aliquot
