// Freezing and unfreezing of parameters between steps: creates a session with a new plan and copies the state to it.
#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <span>

#include "engine/engine.h"
#include "engine/session.h"
#include "sharding/comm/collective_purpose.h"
#include "sharding/state_pieces.h"

namespace aliquot {
namespace {

void copy_state(const State& before, const State& after, TensorStream stream) {
  std::map<std::string, const StateTensor*> by_path;
  for (const StateTensor& tensor : after.tensors) by_path[tensor.path] = &tensor;
  for (const StateTensor& tensor : before.tensors) {
    const auto found = by_path.find(tensor.path);
    // The new state lacks the moments of newly frozen parameters, on every rank.
    if (found == by_path.end()) continue;
    stream.run("copying " + tensor.path, tensor, [&](int64_t first, std::span<const std::byte> elements) {
      write_elements(*found->second, first, elements);
    });
  }
}

}  // namespace

void Engine::set_trainable(std::string_view prefix, bool trainable) {
  session("set_trainable()").require_between_steps("set_trainable()");
  const ScopedCollectivePurpose purpose("change trainable parameters", step_count());
  std::vector<UnitDeclaration> changed = declared_;
  int count = 0;
  for (UnitDeclaration& declared : changed) {
    for (ParameterSpec& parameter : declared.spec.parameters) {
      if (!parameter.tensor.name.starts_with(prefix)) continue;
      parameter.tensor.trainable = trainable;
      ++count;
    }
  }
  if (count == 0) throw UsageError(fmt::format("set_trainable(): no parameter name begins with \"{}\"", prefix));
  auto stages = make_plans(changed);
  SecondaryPlans others = agreed_plans(*stages);
  switch_session(std::move(changed), std::move(stages), std::move(others));
}

/// Replaces the session with one for the new plan and copies the state. If it throws, the engine keeps the old session.
void Engine::switch_session(std::vector<UnitDeclaration> declared, std::shared_ptr<const std::vector<Plan>> stages,
                            SecondaryPlans others) {
  const State before = state();
  std::unique_ptr<Session> old = std::move(session_);
  std::swap(declared_, declared);
  std::swap(stages_, stages);
  compute_stream_ = old->release_compute_stream();
  try {
    session_ = make_session(std::move(others));
    session_->state().initialize(
        [](const ParameterSpec&, int64_t, std::span<float> values) { std::ranges::fill(values, 0.0f); });
    copy_state(before, state(), session_->state().stream());
  } catch (...) {
    if (session_) compute_stream_ = session_->release_compute_stream();
    std::swap(declared_, declared);
    std::swap(stages_, stages);
    session_ = std::move(old);
    session_->resume(std::move(compute_stream_));
    throw;
  }
  if (old->is_recording()) session_->record_timelines();
  old.reset();
  session_->guard_pointers();
  world_.communicator().gather_objects("carried over");  // barrier: all shards are copied before any rank reads them
}

}  // namespace aliquot
