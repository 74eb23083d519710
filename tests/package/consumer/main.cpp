// An external program: fits a line with its own optimizer rule on two ranks at ZeRO stage 3, saves it, and reads it
// back.
#include <aliquot/aliquot.h>
#include <aliquot/checkpoint.h>
#include <aliquot/rule.h>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace {

struct Step {
  static constexpr int kStateCount = 0;
  static constexpr std::array<std::string_view, kStateCount> kStateNames = {};
  float lr;
  Step at(float lr_scale, float) const { return {lr * lr_scale}; }
  float update(float weight, float gradient, float*) const { return weight - lr * gradient; }
};

struct Line {
  float *slope, *slope_gradient, *height, *height_gradient;
};

/// One step towards y = 2 x + 1; returns the loss.
float train(aliquot::Engine& engine, Line& line) {
  float loss = 0;
  engine.micro_batch();
  aliquot::Unit& unit = engine.units()[0];
  std::array<float, 4> errors{};
  {
    const auto live = unit.forward();
    for (int x = 0; x < 4; ++x) {
      errors[x] = *line.slope * static_cast<float>(x) + *line.height - (2.0f * static_cast<float>(x) + 1.0f);
      loss += errors[x] * errors[x] / 4;
    }
  }
  {
    const auto live = unit.backward();
    for (int x = 0; x < 4; ++x) {
      *line.slope_gradient += errors[x] * static_cast<float>(x) / 2;
      *line.height_gradient += errors[x] / 2;
    }
  }
  if (engine.step().skipped) throw std::runtime_error("a step was skipped");
  return loss;
}

void run(aliquot::World& world, const std::string& folder) {
  const aliquot::Optimizer rule =
      aliquot::custom_optimizer<Step>("step", 0.1, [](double lr, int64_t) { return Step{static_cast<float>(lr)}; });
  Line line{};
  aliquot::Engine engine(world, {.zero_stage = 3, .optimizer = rule, .clip = 0});
  engine.add_unit("line")
      .add("slope", {1}, &line.slope, &line.slope_gradient)
      .add("height", {1}, &line.height, &line.height_gradient);
  engine.materialize([](const aliquot::ParameterSpec&, int64_t, std::span<float> values) {
    for (float& value : values) value = 0;
  });
  float loss = 0;
  for (int step = 0; step < 100; ++step) loss = train(engine, line);
  aliquot::save(engine.state(), world.communicator(), folder);
  aliquot::State state = engine.state();
  aliquot::load_newest(state, world.communicator(), folder);
  engine.adopt(state);
  const float slope = engine.read("line.slope")[0], height = engine.read("line.height")[0];
  if (world.rank() == 0) std::printf("loss %.6f, y = %.3f x + %.3f\n", loss, slope, height);
}

}  // namespace

int main(int, char** arguments) {
  const std::string folder = std::string(arguments[0]) + "-checkpoints";
  try {
    aliquot::World::threads(2, [&](aliquot::World& world) { run(world, folder); });
    aliquot::World::threads(1, [](aliquot::World& world) { aliquot::Engine(world, {}).materialize(nullptr); });
  } catch (const aliquot::UsageError& error) {  // the library threw it, and this program catches it by its type
    std::printf("told: %s\n", error.what());
  }
  std::filesystem::remove_all(folder);
}
