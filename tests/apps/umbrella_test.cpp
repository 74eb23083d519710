// Uses the umbrella headers as a user does: wraps a model that has raw pointers, trains it and saves it.
#include <aliquot/aliquot.h>
#include <aliquot/checkpoint.h>
#include <cmath>
#include <filesystem>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <vector>

namespace {

struct Layer {
  float *weight, *weight_gradient, *bias, *bias_gradient;
};

/// A model of scalar layers: inputs[l + 1] = inputs[l] * weight + bias.
struct Chain {
  explicit Chain(int depth) : layers(depth), inputs(depth + 1) {}
  void forward(int l) { inputs[l + 1] = inputs[l] * *layers[l].weight + *layers[l].bias; }
  void backward(int l) {
    *layers[l].weight_gradient += slope * inputs[l];
    *layers[l].bias_gradient += slope;
    slope *= *layers[l].weight;
  }
  std::vector<Layer> layers;
  std::vector<float> inputs;
  float slope = 0;
};

TEST(Umbrella, AChainOfScalarsLearnsAndIsSaved) {
  std::string directory = (std::filesystem::temp_directory_path() / "aliquot-umbrella-XXXXXX").string();
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  aliquot::World::threads(2, [&](aliquot::World& world) {
    Chain model(3);
    aliquot::Engine engine(world, {.zero_stage = 3, .optimizer = aliquot::AdamW{.lr = 0.02f}});
    for (auto& layer : model.layers) {
      engine.add_unit("layer." + std::to_string(&layer - model.layers.data()))
          .add("weight", {1, 1}, &layer.weight, &layer.weight_gradient)
          .add("bias", {1}, &layer.bias, &layer.bias_gradient, {.decayed = false});
    }
    engine.materialize([](const aliquot::ParameterSpec&, int64_t, std::span<float> values) {
      for (float& value : values) value = 0.5f;
    });
    float first = 0, last = 0;
    for (int step = 0; step < 100; ++step) {
      model.inputs[0] = 1.0f;
      engine.micro_batch();
      for (auto& unit : engine.units()) {
        auto live = unit.forward();
        model.forward(unit.index());
      }
      model.slope = model.inputs.back() - 3.0f;
      for (auto& unit : reversed(engine.units())) {
        auto live = unit.backward();
        model.backward(unit.index());
      }
      EXPECT_FALSE(engine.step().skipped);
      last = std::abs(model.inputs.back() - 3.0f);
      if (step == 0) first = last;
    }
    EXPECT_LT(last, first / 10);
    aliquot::save(engine.state(), world.communicator(), directory);
  });
  EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(directory) / "step-00000100" / "state.h5"));
  std::filesystem::remove_all(directory);
}

TEST(Umbrella, AccessOutsideAScopeFaultsWithTheParameterName) {
  const auto touch = [] {
    aliquot::install_fault_names();
    aliquot::World::threads(1, [](aliquot::World& world) {
      Chain model(1);
      aliquot::Engine engine(world, {});
      engine.add_unit("layer.0")
          .add("weight", {1, 1}, &model.layers[0].weight, &model.layers[0].weight_gradient)
          .add("bias", {1}, &model.layers[0].bias, &model.layers[0].bias_gradient);
      engine.materialize([](const aliquot::ParameterSpec&, int64_t, std::span<float>) {});
      model.forward(0);
    });
  };
  EXPECT_DEATH(touch(), "parameter layer.0.weight was accessed outside of an open scope");
}

TEST(Umbrella, AScopeOutOfOrderNamesBothUnits) {
  aliquot::World::threads(1, [](aliquot::World& world) {
    // Both units may share these pointers, because their scopes are never open at the same time.
    float *value = nullptr, *gradient = nullptr;
    aliquot::Engine engine(world, {});
    engine.add_unit("a").add("w", {1}, &value, &gradient);
    engine.add_unit("b").add("w", {1}, &value, &gradient);
    engine.materialize([](const aliquot::ParameterSpec&, int64_t, std::span<float>) {});
    engine.micro_batch();
    try {
      auto live = engine.units()[1].forward();
      FAIL() << "a scope was opened out of order";
    } catch (const aliquot::UsageError& error) {
      EXPECT_STREQ(error.what(), "forward of b was opened, but the declared order expects forward of a");
    }
  });
}

TEST(Umbrella, RanksWithDifferentPlansAreRejected) {
  try {
    aliquot::World::threads(2, [](aliquot::World& world) {
      float *value = nullptr, *gradient = nullptr;
      aliquot::Engine engine(world, {});
      engine.add_unit("a").add("w", {world.rank() == 0 ? 10 : 20}, &value, &gradient);
      engine.materialize([](const aliquot::ParameterSpec&, int64_t, std::span<float>) {});
    });
    FAIL() << "the engine accepted different plans";
  } catch (const aliquot::UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("the plan or options of rank 1 differ from those of rank 0"),
              std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("[10]"), std::string::npos) << error.what();
  }
}

}  // namespace
