// Training of the small model through the engine.
#include <gtest/gtest.h>
#include <memory>

#include "tests/engine/small_model.h"

namespace aliquot::testing_model {

void declare(Engine& engine, SmallModel& model) {
  auto &value = model.value.at, &gradient = model.gradient.at;
  engine.add_unit("scale").add("weight", {kWidths[0]}, &value[0], &gradient[0], {.decayed = false});
  for (int l = 0; l < kLayers; ++l) {
    engine.add_unit("layer." + std::to_string(l))
        .add("weight", {kWidths[l + 1], kWidths[l]}, &value[1 + 2 * l], &gradient[1 + 2 * l],
             {.matrix = is_matrix(1 + 2 * l)})
        .add("bias", {kWidths[l + 1]}, &value[2 + 2 * l], &gradient[2 + 2 * l], {.decayed = false});
  }
  engine.declare_order({{0}, {1}, {2}, {3, 0}});
  engine.materialize([](const ParameterSpec& parameter, int64_t offset, std::span<float> values) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = initial_value(parameter.tensor.name, offset + static_cast<int64_t>(i));
  });
}

void train_micro_batch(Engine& engine, SmallModel& model, int64_t step, int micro_batch, int rank, float blow_up) {
  auto& units = engine.units();
  // Queued work holds the samples, because it may run after an exception has left this function.
  const auto data = std::make_shared<const std::vector<float>>(samples(step, micro_batch, rank));
  const float scale = static_cast<float>(engine.loss_scale()) * blow_up;
  Stream& compute = engine.compute_stream();
  engine.micro_batch();
  for (int use = 0; use < kUses; ++use) {
    auto live = use < kLayers ? units[use].forward() : engine.forward({&units[kLayers], &units[0]});
    compute.run([&model, data, use, values = model.value] { model.forward(use, *data, values); });
  }
  for (int use = kUses - 1; use >= 0; --use) {
    auto live = use < kLayers ? units[use].backward() : engine.backward({&units[kLayers], &units[0]});
    compute.run([&model, use, scale, values = model.value, gradients = model.gradient] {
      model.backward(use, scale, values, gradients);
    });
  }
  // The work must be complete before the caller reads the loss.
  compute.synchronize();
}

void run_use(Engine& engine, SmallModel& model, const Work& work, std::vector<float> samples) {
  Stream& compute = engine.compute_stream();
  const auto data = std::make_shared<const std::vector<float>>(std::move(samples));
  const int use = work.use;
  if (work.kind == UseKind::kForward) {
    compute.run([&model, data, use, values = model.value] { model.forward(use, *data, values); });
  } else {
    const auto scale = static_cast<float>(engine.loss_scale());
    compute.run([&model, use, scale, values = model.value, gradients = model.gradient] {
      model.backward(use, scale, values, gradients);
    });
  }
  compute.synchronize();
  const bool has_loss = work.kind == UseKind::kForward && use == kUses - 1 && work.micro_batch == 0;
  if (has_loss) engine.compare_loss(model.loss(), work.replayed);
}

std::vector<float> read_all(Engine& engine) {
  std::vector<float> all;
  for (const Shape& shape : shapes()) {
    const auto full = engine.read(shape.unit + "." + shape.name);
    all.insert(all.end(), full.begin(), full.end());
  }
  return all;
}

/// The ranks of a tensor group read the same samples.
int data_rank(const World& world, const Settings& settings) { return world.rank() / settings.options.tensor; }

Outcome train(World& world, const Settings& settings) {
  EngineWithModel setup(world, settings);
  auto& [model, engine] = setup;
  Outcome outcome;
  for (int step = 0; step < settings.steps; ++step) {
    double loss = 0;
    for (int m = 0; m < settings.options.accumulate; ++m) {
      train_micro_batch(engine, model, step, m, data_rank(world, settings));
      loss += model.loss();
    }
    const StepReport report = engine.step();
    engine.check_copies();
    double shared = world.rank() == 0 ? loss : 0;
    const auto stream = world.device().make_stream(Lane::kCompute);
    world.communicator().all_reduce(*stream, {&shared, 1}, Reduction::kSum, {"loss"});
    stream->synchronize();
    outcome.losses.push_back(shared);
    outcome.norms.push_back(report.gradient_norm);
  }
  outcome.parameters = read_all(engine);
  return outcome;
}

double evaluate(Engine& engine, SmallModel& model, int64_t batch, int rank) {
  auto& units = engine.units();
  const auto data = std::make_shared<const std::vector<float>>(samples(batch, 7, rank));
  for (int use = 0; use < kUses; ++use) {
    auto live = use < kLayers ? units[use].evaluate() : engine.evaluate({&units[kLayers], &units[0]});
    engine.compute_stream().run([&model, data, use, values = model.value] { model.forward(use, *data, values); });
  }
  engine.compute_stream().synchronize();
  return model.loss();
}

Outcome train_on(int ranks, const Settings& settings, const WorldOptions& options) {
  Outcome outcome;
  World::threads(
      ranks,
      [&](World& world) {
        const Outcome own = train(world, settings);
        if (world.rank() == 0) outcome = own;
      },
      options);
  return outcome;
}

void expect_planned_memory(World& world, const Settings& settings) {
  SmallModel model(settings.options.precision);
  Engine engine(world, settings.options);
  declare(engine, model);
  for (int step = 0; step < 2; ++step) {
    for (int m = 0; m < 2; ++m) train_micro_batch(engine, model, step, m, data_rank(world, settings));
    EXPECT_FALSE(engine.step().skipped);
  }
  EXPECT_EQ(world.device().ledger().peak(), account(engine.plan().schedule).peak);
}

std::vector<double> freeze_and_evaluate(int ranks, const Settings& settings, const WorldOptions& options) {
  std::vector<double> seen;
  World::threads(
      ranks,
      [&](World& world) {
        EngineWithModel setup(world, settings);
        auto& [model, engine] = setup;
        for (int step = 0; step < 4; ++step) {
          if (step == 1) engine.set_trainable("layer.0", false);
          if (step == 3) engine.set_trainable("layer.0", true);
          model.frozen[1] = model.frozen[2] = step == 1 || step == 2;
          train_micro_batch(engine, model, step, 0, data_rank(world, settings));
          const double norm = engine.step().gradient_norm;
          const double loss = evaluate(engine, model, step, data_rank(world, settings));
          if (world.rank() == 0) seen.insert(seen.end(), {norm, loss});
        }
      },
      options);
  return seen;
}

}  // namespace aliquot::testing_model
