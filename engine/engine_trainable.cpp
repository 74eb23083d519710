// Freezing and unfreezing between steps: another plan, and what was trained carried over to it.
#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <span>

#include "engine/engine.h"
#include "engine/run/tensor_stream.h"
#include "engine/running.h"
#include "sharding/comm/exchange_purpose.h"
#include "sharding/pieces.h"

namespace aliquot {
namespace {

void carry_over(const State& before, const State& after, TensorStream stream) {
  std::map<std::string, const StateTensor*> by_path;
  for (const StateTensor& tensor : after.tensors) by_path[tensor.path] = &tensor;
  for (const StateTensor& tensor : before.tensors) {
    const auto found = by_path.find(tensor.path);
    if (found == by_path.end()) continue;  // moments of what is frozen now; the same on every rank
    stream.run("carrying over " + tensor.path, tensor, [&](int64_t first, std::span<const std::byte> elements) {
      write_elements(*found->second, first, elements);
    });
  }
}

}  // namespace

void Engine::set_trainable(std::string_view prefix, bool trainable) {
  running("freezing or unfreezing").require_between_steps("set_trainable()");
  const ExchangePurpose purpose("change what is trainable", step_count_);
  const State before = state();
  std::vector<Declared> changed = declared_;
  int count = 0;
  for (Declared& declared : changed) {
    for (ParameterSpec& parameter : declared.spec.parameters) {
      if (!parameter.tensor.name.starts_with(prefix)) continue;
      parameter.tensor.trainable = trainable;
      ++count;
    }
  }
  if (count == 0) throw UsageError(fmt::format("no parameter's name begins with \"{}\"", prefix));
  auto plan = std::make_unique<Plan>(make_plan(changed));
  const Plan evaluation = agreed_evaluation(*plan);
  replace(std::move(changed), std::move(plan), evaluation, before);
}

/// What fails leaves the engine as it was.
void Engine::replace(std::vector<Declared> declared, std::unique_ptr<Plan> plan, const Plan& evaluation,
                     const State& before) {
  const bool records = running_->recorder.has_value();
  std::unique_ptr<Running> old = std::move(running_);
  std::swap(declared_, declared);
  std::swap(plan_, plan);
  compute_stream_ = std::move(old->lanes[static_cast<std::size_t>(Lane::kCompute)]);
  try {
    make_running(evaluation);
    initialize_parameters(
        [](const ParameterSpec&, int64_t, std::span<float> values) { std::ranges::fill(values, 0.0f); });
    carry_over(before, state(), tensor_stream());
  } catch (...) {
    if (running_) compute_stream_ = std::move(running_->lanes[static_cast<std::size_t>(Lane::kCompute)]);
    std::swap(declared_, declared);
    std::swap(plan_, plan);
    old->lanes[static_cast<std::size_t>(Lane::kCompute)] = std::move(compute_stream_);
    running_ = std::move(old);
    running_->bindings.guard_all();
    throw;
  }
  old.reset();
  running_->bindings.guard_all();
  if (records) record_timelines();
  world_.communicator().gather_objects("carried over");  // nobody reads a peer's shard before it is there
}

}  // namespace aliquot
