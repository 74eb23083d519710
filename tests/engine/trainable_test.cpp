// Tests of frozen parameters, and of set_trainable() between steps.
#include <array>
#include <gtest/gtest.h>

#include "engine/choose/budget.h"
#include "tests/engine/small_model.h"

namespace aliquot {
namespace {

using namespace testing_model;

struct Trained {
  std::vector<double> norms;
  std::vector<float> parameters;
  friend bool operator==(const Trained&, const Trained&) = default;
};

void set_trainable(Engine& engine, SmallModel& model, const std::string& prefix, bool trainable) {
  engine.set_trainable(prefix, trainable);
  for (int t = 0; t < kTensors; ++t) {
    const Shape shape = shapes()[t];
    if ((shape.unit + "." + shape.name).starts_with(prefix)) model.frozen[t] = !trainable;
  }
}

/// Trains one step for each entry of `changes`. Before the step, "-layer.0" freezes the parameters whose names begin
/// with layer.0, and "+layer.0" unfreezes them.
Trained train_with(int ranks, const EngineOptions& options, const std::vector<std::vector<std::string>>& changes) {
  Trained trained;
  World::threads(
      ranks,
      [&](World& world) {
        SmallModel model(options.precision);
        Engine engine(world, options);
        declare(engine, model);
        engine.set_learning_rate(0.01);
        for (std::size_t step = 0; step < changes.size(); ++step) {
          for (const std::string& each : changes[step])
            set_trainable(engine, model, each.substr(1), each.front() == '+');
          const auto before = read_all(engine);
          train_micro_batch(engine, model, static_cast<int64_t>(step), 0, world.rank());
          const double norm = engine.step().gradient_norm;
          if (world.rank() == 0) trained.norms.push_back(norm);
          EXPECT_FALSE(read_all(engine) == before);
        }
        const auto after = read_all(engine);
        if (world.rank() == 0) trained.parameters = after;
      },
      kHosts);
  return trained;
}

/// Like declare(), but layer 0 is frozen from the start.
void declare_frozen_layer_0(Engine& engine, SmallModel& model) {
  auto &value = model.value.at, &gradient = model.gradient.at;
  engine.add_unit("scale").add("weight", {kWidths[0]}, &value[0], &gradient[0], {.decayed = false});
  for (int l = 0; l < kLayers; ++l) {
    engine.add_unit("layer." + std::to_string(l))
        .add("weight", {kWidths[l + 1], kWidths[l]}, &value[1 + 2 * l], &gradient[1 + 2 * l], {.trainable = l > 0})
        .add("bias", {kWidths[l + 1]}, &value[2 + 2 * l], &gradient[2 + 2 * l], {.trainable = l > 0, .decayed = false});
  }
  engine.declare_order({{0}, {1}, {2}, {3, 0}});
  engine.materialize([](const ParameterSpec& parameter, int64_t offset, std::span<float> values) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = initial_value(parameter.tensor.name, offset + static_cast<int64_t>(i));
  });
}

TEST(Trainable, FreezingAndUnfreezingBetweenStepsDoesNotChangeResults) {
  for (const int ranks : {1, 2, 3}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const auto gather : {GatherMode::kCopy, GatherMode::kView}) {
        if (stage < 3 && gather == GatherMode::kView) continue;
        EngineOptions options = {.zero_stage = stage, .optimizer = Sgd{.momentum = 0}};
        if (stage == 3) options.gather = gather;
        const Trained never = train_with(ranks, options, {{}, {}, {}, {}});
        EXPECT_TRUE(train_with(ranks, options, {{}, {"-layer.1", "+layer.1"}, {"-", "+"}, {}}) == never)
            << ranks << " ranks, ZeRO stage " << stage;
      }
    }
  }
}

TEST(Trainable, ChangesKeepTheMomentsOfOtherParameters) {
  for (const int stage : {0, 3}) {
    const EngineOptions options = {.zero_stage = stage};
    const Trained never = train_with(2, options, {{"-layer.0"}, {}, {}, {}});
    EXPECT_TRUE(train_with(2, options, {{"-layer.0"}, {"-layer.0.weight"}, {"-layer.0"}, {}}) == never);
    EXPECT_FALSE(train_with(2, options, {{"-layer.0"}, {}, {"+layer.0"}, {}}) == never);
  }
}

TEST(Trainable, ChangesGiveTheSameResultsAtEveryStage) {
  const std::vector<std::vector<std::string>> changes = {
      {"-layer.0", "-scale"}, {}, {"+layer.0.bias"}, {"+"}, {"-layer.2"}};
  for (const Precision& precision : {Precision{}, Precision{.compute = DType::kBFloat16}}) {
    Trained stage0;
    for (const int stage : {0, 1, 2, 3}) {
      const Trained trained = train_with(3, {.zero_stage = stage, .precision = precision}, changes);
      if (stage == 0) stage0 = trained;
      EXPECT_TRUE(trained == stage0) << "ZeRO stage " << stage << ", " << precision.describe();
    }
  }
}

TEST(Trainable, FrozenParametersDoNotChangeAndHaveNoState) {
  for (const int stage : {0, 1, 2, 3}) {
    World::threads(
        2,
        [&](World& world) {
          SmallModel model;
          Engine engine(world, {.zero_stage = stage});
          declare(engine, model);
          const auto optimizer_bytes = [&] {
            return account(engine.plan().schedule).peak[static_cast<std::size_t>(Category::kOptimizer)];
          };
          const int64_t all = optimizer_bytes();
          set_trainable(engine, model, "layer.1", false);
          EXPECT_LT(optimizer_bytes(), all);
          const auto before = engine.read("layer.1.weight"), other = engine.read("layer.0.weight");
          for (int step = 0; step < 2; ++step) {
            train_micro_batch(engine, model, step, 0, world.rank());
            EXPECT_FALSE(engine.step().skipped);
          }
          EXPECT_TRUE(engine.read("layer.1.weight") == before);
          EXPECT_FALSE(engine.read("layer.0.weight") == other);
          EXPECT_EQ(engine.step_count(), 2);
          EXPECT_THROW(engine.set_trainable("nothing", true), UsageError);
          engine.micro_batch();
          EXPECT_THROW(engine.set_trainable("layer.1", true), UsageError) << "during a step";
        },
        kHosts);
  }
}

/// The memory budget has no space for training layer 0, so set_trainable() rejects it. The engine then keeps its
/// weights and its compute stream, and can continue to train.
TEST(Trainable, RejectedChangeHasNoEffect) {
  World::threads(
      2,
      [&](World& world) {
        SmallModel model;
        Engine probe(world, {.zero_stage = 2, .prefetch = 0});
        SmallModel unused;
        declare(probe, unused);
        set_trainable(probe, unused, "layer.0", false);
        const int64_t frozen_bytes = rank_bytes(probe.plan());
        Engine engine(world, {.zero_stage = 2, .memory_budget_bytes = frozen_bytes + 256});
        auto stream = world.device().make_stream(Lane::kCompute);
        const Stream* own = stream.get();
        engine.compute_on(std::move(stream));
        model.frozen[1] = model.frozen[2] = true;
        declare_frozen_layer_0(engine, model);
        EXPECT_EQ(&engine.compute_stream(), own);
        train_micro_batch(engine, model, 0, 0, world.rank());
        EXPECT_FALSE(engine.step().skipped);
        const auto before = read_all(engine);
        EXPECT_THROW(engine.set_trainable("layer.0", true), UnavailableError);
        EXPECT_TRUE(read_all(engine) == before);
        EXPECT_EQ(&engine.compute_stream(), own);
        train_micro_batch(engine, model, 1, 0, world.rank());
        EXPECT_FALSE(engine.step().skipped);
        set_trainable(engine, model, "layer.2", false);
        EXPECT_EQ(&engine.compute_stream(), own) << "a successful change should also keep the stream";
        train_micro_batch(engine, model, 2, 0, world.rank());
        EXPECT_FALSE(engine.step().skipped);
      },
      kHosts);
}

/// A host device on which make_stream(Lane::kReduce) throws while `refuses` is true.
class StreamlessDevice final : public Device {
 public:
  explicit StreamlessDevice(const bool& refuses) : refuses_(refuses) {}

  DeviceKind kind() const override { return inner_->kind(); }
  std::string describe() const override { return inner_->describe(); }
  Buffer allocate(int64_t size_bytes, Category category, std::string_view owner) override {
    return inner_->allocate(size_bytes, category, owner);
  }
  Buffer allocate_host(int64_t size_bytes, std::string_view owner) override {
    return inner_->allocate_host(size_bytes, owner);
  }
  std::unique_ptr<Event> make_event() override { return inner_->make_event(); }
  const Kernels& kernels() const override { return inner_->kernels(); }
  std::unique_ptr<Stream> make_stream(Lane lane) override {
    if (refuses_ && lane == Lane::kReduce) throw UnavailableError("no more threads");
    return inner_->make_stream(lane);
  }

 private:
  const bool& refuses_;
  std::unique_ptr<Device> inner_ = make_host_device(1);
};

TEST(Trainable, FailureToMakeStreamsKeepsTheCallersStream) {
  bool refuses = false;
  const auto make_device = [&](int) { return std::make_unique<StreamlessDevice>(refuses); };
  World::threads(1,
                 [&](World& world) {
                   SmallModel model;
                   Engine engine(world, {});
                   auto stream = world.device().make_stream(Lane::kCompute);
                   const Stream* own = stream.get();
                   engine.compute_on(std::move(stream));
                   declare(engine, model);
                   refuses = true;
                   EXPECT_THROW(set_trainable(engine, model, "layer.0", false), UnavailableError);
                   refuses = false;
                   EXPECT_EQ(&engine.compute_stream(), own);
                   train_micro_batch(engine, model, 0, 0, world.rank());
                   EXPECT_FALSE(engine.step().skipped);
                 },
                 {.timeout_seconds = 60, .make_device = make_device});
}

}  // namespace
}  // namespace aliquot
