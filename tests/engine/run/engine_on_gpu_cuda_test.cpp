// Tests of the engine for real GPUs. They need one GPU. The model has no kernels of its own. It fills each gradient
// with one value.
#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "kernels/elementwise/kernels.h"

namespace aliquot {
namespace {

constexpr int kRanks = 2, kUnits = 3;
constexpr int64_t kElements = 3000;

/// An engine and a model of kUnits units, with one parameter each.
class Training {
 public:
  Training(World& world, const EngineOptions& options) : world_(world), engine_(world, options) {
    for (int u = 0; u < kUnits; ++u)
      engine_.add_unit(fmt::format("u{}", u))
          .add("w", {kElements}, &value_[static_cast<std::size_t>(u)], &gradient_[static_cast<std::size_t>(u)])
          .assigns_gradients();
    engine_.materialize([](const auto&, int64_t first, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = 0.001f * static_cast<float>((first + static_cast<int64_t>(i)) % 1009);
    });
  }

  /// Enqueues a step. The work may still run when this function returns.
  void step() {
    engine_.run_passes([&] { run_passes(); });
    EXPECT_FALSE(engine_.step().skipped);
  }

  std::vector<float> values() {
    std::vector<float> all;
    for (int u = 0; u < kUnits; ++u) {
      const std::vector<float> one = engine_.read(fmt::format("u{}.w", u));
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

 private:
  void run_passes() {
    engine_.micro_batch();
    for (Unit& unit : engine_.units()) const auto scope = unit.forward();
    for (Unit& unit : reversed(engine_.units())) {
      const auto scope = unit.backward();
      const auto u = static_cast<std::size_t>(unit.index());
      world_.device().kernels().fill(engine_.compute_stream(), gradient_[u], engine_.options().precision.gradients,
                                     0.25f * static_cast<float>(u + 1), kElements);
    }
  }

  World& world_;
  std::array<void*, kUnits> value_{}, gradient_{};
  Engine engine_;
};

/// Trains four steps, and returns all parameters.
std::vector<float> train(DeviceChoice device, const EngineOptions& options, int ranks = kRanks) {
  std::vector<float> values;
  World::threads(ranks,
                 [&](World& world) {
                   Training training(world, options);
                   for (int step = 0; step < 4; ++step) training.step();
                   const std::vector<float> own = training.values();
                   if (world.rank() == 0) values = own;
                 },
                 {.device = device, .kind = WorldChoice::kThreads, .timeout_seconds = 60});
  return values;
}

class EngineOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no usable GPU";
  }
};

TEST_F(EngineOnGpu, GivesTheBitsOfHosts) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
      for (const GatherMode gather : {GatherMode::kAuto, GatherMode::kCopy}) {
        if (stage < 3 && gather == GatherMode::kCopy) continue;
        const EngineOptions options{.zero_stage = stage, .precision = {.compute = compute}, .gather = gather};
        EXPECT_EQ(train(DeviceChoice::kCuda, options), train(DeviceChoice::kHost, options))
            << "ZeRO stage " << stage << ", " << name(compute);
      }
    }
  }
}

/// Only one rank can use the GPU with a graph.
TEST_F(EngineOnGpu, GivesTheSameBitsWithAGraph) {
  for (const int stage : {0, 3}) {
    EngineOptions options{.zero_stage = stage, .precision = {.compute = DType::kBFloat16}, .graph = GraphMode::kOn};
    const std::vector<float> with = train(DeviceChoice::kCuda, options, 1);
    options.graph = GraphMode::kOff;
    EXPECT_EQ(with, train(DeviceChoice::kCuda, options, 1)) << "ZeRO stage " << stage;
    EXPECT_EQ(with, train(DeviceChoice::kHost, options, 1)) << "ZeRO stage " << stage;
  }
}

/// The engine must not free its memory under work that still runs. A GPU, or compute-sanitizer, then reports an illegal
/// address.
TEST_F(EngineOnGpu, IsDestroyedDirectlyAfterAStep) {
  World::threads(kRanks,
                 [](World& world) {
                   for (int repetition = 0; repetition < 50; ++repetition) {
                     Training training(world, {.zero_stage = repetition % 4});
                     training.step();
                   }
                 },
                 {.device = DeviceChoice::kCuda, .kind = WorldChoice::kThreads, .timeout_seconds = 60});
}

/// Gradients of very different sizes, so that the last bits of their norm depend on the order of additions.
void fill_unevenly(const Kernels& kernels, Stream& stream, float* gradient, int64_t count) {
  constexpr int64_t kPieces = 100;
  for (int64_t p = 0; p < kPieces; ++p) {
    const int64_t begin = count * p / kPieces, end = count * (p + 1) / kPieces;
    kernels.fill(stream, gradient + begin, DType::kFloat32, std::exp(0.37f * static_cast<float>(p % 67)), end - begin);
  }
}

/// Returns the gradient norm of a step. The model has a tensor whose blocks several thread blocks of a GPU add.
double norm_of_long_tensor(DeviceChoice device, int ranks, const EngineOptions& options) {
  constexpr int kTensors = 3;
  constexpr int64_t kCounts[kTensors] = {kElements, 3 * 2048 * kBlockElements + 777, 700};
  double norm = 0;
  World::threads(
      ranks,
      [&](World& world) {
        void *value[kTensors], *gradient[kTensors];
        Engine engine(world, options);
        for (int t = 0; t < kTensors; ++t)
          engine.add_unit(fmt::format("u{}", t)).add("w", {kCounts[t]}, &value[t], &gradient[t]).assigns_gradients();
        engine.materialize([](const auto&, int64_t, std::span<float> values) { std::ranges::fill(values, 0.5f); });
        engine.micro_batch();
        for (Unit& unit : engine.units()) const auto scope = unit.forward();
        for (Unit& unit : reversed(engine.units())) {
          const auto scope = unit.backward();
          fill_unevenly(world.device().kernels(), engine.compute_stream(), static_cast<float*>(gradient[unit.index()]),
                        kCounts[unit.index()]);
        }
        const StepReport report = engine.step();
        EXPECT_FALSE(report.skipped);
        if (world.rank() == 0) norm = report.gradient_norm;
      },
      {.device = device, .kind = WorldChoice::kThreads, .timeout_seconds = 60});
  return norm;
}

TEST_F(EngineOnGpu, GivesTheNormOfHostsForLongTensors) {
  for (const int ranks : {1, 2, 3}) {
    for (const int stage : {0, 3}) {
      const EngineOptions options{.zero_stage = stage};
      const double host = norm_of_long_tensor(DeviceChoice::kHost, ranks, options);
      EXPECT_EQ(norm_of_long_tensor(DeviceChoice::kCuda, ranks, options), host) << ranks << " ranks, stage " << stage;
    }
  }
}

}  // namespace
}  // namespace aliquot
