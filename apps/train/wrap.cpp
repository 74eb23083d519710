#include "apps/train/wrap.h"

#include <algorithm>
#include <map>
#include <string>

#include "kernels/formats/philox.h"

namespace aliquot {
namespace {

// The key of a parameter's random numbers (FNV-1a). It depends only on the name, so that other changes to a model do
// not change the parameter's initial values.
uint32_t key_of(std::string_view name) {
  uint32_t key = 2166136261u;
  for (const char c : name) key = (key ^ static_cast<unsigned char>(c)) * 16777619u;
  return key;
}

void fill_initial_values(const Initializer& initial, const RandomKey& key, int64_t offset, std::span<float> values) {
  switch (initial.kind) {
    case Initializer::Kind::kZero: std::ranges::fill(values, 0.0f); return;
    case Initializer::Kind::kOne: std::ranges::fill(values, 1.0f); return;
    case Initializer::Kind::kNormal:
    case Initializer::Kind::kUniform: break;
  }
  const bool normal = initial.kind == Initializer::Kind::kNormal;
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t element = offset + static_cast<int64_t>(i);
    values[i] = initial.scale * (normal ? random_normal(key, element) : 2 * random_uniform(key, element) - 1);
  }
}

Unit& unit_of(Engine& engine, const Model& model, int use) {
  return engine.units()[static_cast<size_t>(model.uses()[static_cast<size_t>(use)])];
}

void run_use(Model& model, UseKind kind, int use) {
  switch (kind) {
    case UseKind::kForward:
    case UseKind::kEvaluate: return model.forward(use);
    case UseKind::kBackward: return model.backward(use);
    case UseKind::kBackwardInput: return model.backward_input(use);
    case UseKind::kBackwardWeights: return model.backward_weights(use);
  }
}

/// Sets the batch of the model whenever it changes.
std::vector<double> run_passes_directly(Engine& engine, Model& model, const BatchOf& batch_of) {
  std::vector<double> losses(static_cast<size_t>(engine.plan().policy.micro_batch_count), 0.0);
  const auto last_use = static_cast<int32_t>(model.uses().size()) - 1;
  struct Batch {
    int micro_batch = -1, data_coordinate = -1;
    bool replayed = false;
    bool operator==(const Batch&) const = default;
  } current, with_loss;
  bool replays = false;  // whether the step has a replay
  // Reads a loss as late as possible, because reading it waits for the device.
  const auto read_loss = [&] {
    if (with_loss.micro_batch < 0) return;
    const double loss = model.loss_sum();
    if (!with_loss.replayed) losses[static_cast<size_t>(with_loss.micro_batch)] = loss;
    if (replays && with_loss.micro_batch == 0) engine.compare_loss(loss, with_loss.replayed);
    with_loss = {};
  };
  while (const auto work = engine.next()) {
    replays = replays || work->replayed;
    if (replays) read_loss();  // the engine compares the loss of micro-batch 0
    // The weights part of a backward does not read the batch. Setting it would copy the batch to the device again.
    const bool reads_batch = work->kind != UseKind::kBackwardWeights;
    const Batch batch{work->micro_batch, work->data_coordinate, work->replayed};
    if (reads_batch && batch != current) {
      model.set_batch(batch_of(batch.micro_batch, batch.data_coordinate));
      current = batch;
    }
    model.set_memory(work->memory());
    if (work->kind == UseKind::kForward && work->use == last_use) {
      read_loss();
      with_loss = batch;
    }
    run_use(model, work->kind, work->use);
  }
  read_loss();
  return losses;
}

/// Copies all micro-batches to the GPU before the passes, because a graph repeats only what it has captured.
std::vector<double> run_passes_as_graph(Engine& engine, Model& model, const BatchOf& batch_of) {
  const Plan& plan = engine.plan();
  const int count = plan.policy.micro_batch_count;
  try {
    for (int m = 0; m < count; ++m) model.stage_batch(m, batch_of(m, engine.data_coordinate()));
  } catch (...) {
    engine.abandon();
    throw;
  }
  engine.run_passes([&] {
    while (const auto work = engine.next()) {
      model.select_batch(work->micro_batch);
      model.set_memory(work->memory());
      run_use(model, work->kind, work->use);
    }
  });
  std::vector<double> losses(static_cast<size_t>(count), 0.0);
  const auto last_use = static_cast<int32_t>(model.uses().size()) - 1;
  const bool has_loss = std::ranges::any_of(plan.schedule.operations, [&](const Operation& operation) {
    return operation.verb == Verb::kForward && operation.operand == last_use;
  });
  for (int m = 0; has_loss && m < count; ++m) losses[static_cast<size_t>(m)] = model.loss_sum(m);
  return losses;
}

}  // namespace

void wrap(Engine& engine, Model& model, const WrapOptions& options) {
  for (const ModelUnit& declared : model.units()) {
    Unit& unit = engine.add_unit(declared.name);
    if (declared.gradients == GradientMode::kAssign) unit.assigns_gradients();
    for (const ModelTensor& tensor : declared.tensors) {
      void** const gradient = tensor.trainable ? &tensor.gradient->data : nullptr;
      unit.add(tensor.name, tensor.shape, &tensor.parameter->data, gradient,
               {.trainable = options.trainable && tensor.trainable,
                .decayed = is_decayed(tensor.shape, options.decay_all),
                .matrix = !tensor.is_table,
                .split = tensor.over_tensor.split,
                .partial_gradient = tensor.over_tensor.partial_gradient});
    }
  }
  std::vector<std::vector<UnitId>> order;
  for (const int unit : model.uses()) order.push_back({unit});
  engine.declare_order(std::move(order));
  engine.declare_activations(model.activations(), [&model](const UseMemory& memory) {
    model.set_memory(memory);
    model.recompute(memory.use);
  });
}

Initialize initial_values(const Model& model, uint64_t seed) {
  std::map<std::string, Initializer> initials;
  for (const ModelUnit& unit : model.units()) {
    for (const ModelTensor& tensor : unit.tensors) initials[unit.name + "." + tensor.name] = tensor.initial;
  }
  return
      [initials = std::move(initials), seed](const ParameterSpec& parameter, int64_t offset, std::span<float> values) {
        const std::string& name = parameter.tensor.name;
        const RandomKey key{.seed = seed, .parameter = key_of(name), .use = RandomUse::kInitialValue};
        fill_initial_values(initials.at(name), key, offset, values);
      };
}

void run_micro_batch(Engine& engine, Model& model) {
  const int use_count = static_cast<int>(model.uses().size());
  const auto pass = engine.micro_batch();
  for (int use = 0; use < use_count; ++use) {
    const Scope live = unit_of(engine, model, use).forward();
    model.set_memory(live.memory());
    model.forward(use);
  }
  for (int use = use_count - 1; use >= 0; --use) {
    const Scope live = unit_of(engine, model, use).backward();
    model.set_memory(live.memory());
    model.backward(use);
  }
}

std::vector<double> run_passes(Engine& engine, Model& model, const BatchOf& batch_of) {
  return engine.uses_graph() ? run_passes_as_graph(engine, model, batch_of)
                             : run_passes_directly(engine, model, batch_of);
}

void run_evaluation(Engine& engine, Model& model) {
  while (const auto work = engine.next_evaluation()) {
    model.set_memory(work->memory());
    model.forward(work->use);
  }
}

}  // namespace aliquot
