// The checking mode (EngineOptions::check) with LibTorch modules: results do not change, and each mistake is found.
#include <functional>
#include <gtest/gtest.h>
#include <string>

#include "libtorch/call.h"

#include "engine/run/memory/guard_range.h"
#include "sharding/world.h"
#include "tests/libtorch/small_modules.h"

namespace aliquot {
namespace {

using namespace testing_torch;

void in_world(int rank_count, const std::function<void(World&)>& body) {
  World::threads(rank_count,
                 [&](World& world) {
                   at::set_num_threads(1);
                   body(world);
                 },
                 {.device = DeviceChoice::kHost, .timeout_seconds = 60});
}

EngineOptions options(int zero_stage, bool check) {
  return {.zero_stage = zero_stage, .optimizer = AdamW{.lr = 1e-2f}, .clip = 1, .check = check};
}

/// Trains the GPT for three steps with an evaluation before each, and returns the losses and the first parameter.
std::vector<double> train(int rank_count, int zero_stage, bool check, DType compute) {
  std::vector<double> results;
  in_world(rank_count, [&](World& world) {
    Gpt model;
    model.initialize();
    EngineOptions how = options(zero_stage, check);
    how.precision = {.compute = compute};
    if (compute == DType::kBFloat16) model.to(torch::kBFloat16);
    Engine engine(world, how);
    const auto sharded = fully_shard(model, engine);
    const auto loss_of = [&](int step) {
      const torch::Tensor ids =
          (torch::arange(4 * kContext, torch::kLong) * (7 + step + world.rank()) % kVocabulary).view({4, kContext});
      const torch::Tensor logits = model.forward(ids).to(torch::kFloat);
      return torch::nn::functional::cross_entropy(logits.reshape({-1, kVocabulary}), ids.reshape({-1}));
    };
    for (int step = 0; step < 3; ++step) {
      double values[2] = {0, 0};
      {
        const torch::NoGradGuard none;
        values[0] = loss_of(9).item<double>();
      }
      engine.micro_batch();
      const torch::Tensor loss = loss_of(step);
      sharded->backward(loss);
      EXPECT_FALSE(engine.step().skipped);
      values[1] = loss.item<double>();
      world.sum(values);
      if (world.rank() == 0) results.insert(results.end(), values, values + 2);
    }
    const std::vector<float> table = engine.read("wte.weight");
    if (world.rank() == 0) results.insert(results.end(), table.begin(), table.end());
  });
  return results;
}

TEST(CheckingMode, DoesNotChangeResults) {
  for (const int zero_stage : {0, 1, 2, 3}) {
    for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
      const auto expected = train(2, zero_stage, false, compute);
      EXPECT_EQ(train(2, zero_stage, true, compute), expected) << "ZeRO stage " << zero_stage << " " << name(compute);
    }
  }
}

/// A module with one layer, whose forward runs `act` with the weight.
struct Layer : torch::nn::Module {
  struct PartImpl : torch::nn::Module {
    torch::nn::Linear inner{4, 4};
    std::function<void(torch::Tensor&)> act;
    PartImpl() { register_module("inner", inner); }
    torch::Tensor forward(const torch::Tensor& x) {
      if (act) act(inner->weight);
      return inner(x);
    }
  };
  std::shared_ptr<PartImpl> part = register_module("part", std::make_shared<PartImpl>());
};

/// Runs one step in the checking mode. `in_forward` runs in the forward with the weight, and `in_backward` when the
/// gradient of the weight has been added.
void run_step(World& world, const std::function<void(torch::Tensor&)>& in_forward,
              const std::function<void(torch::Tensor&)>& in_backward = {}) {
  Layer module;
  Engine engine(world, options(3, true));
  const auto sharded = fully_shard(module, engine);
  module.part->act = in_forward;
  engine.micro_batch();
  const torch::Tensor x = torch::ones({2, 4}).set_requires_grad(true);
  if (in_backward) x.register_hook([&](const at::Tensor&) { in_backward(module.part->inner->weight); });
  sharded->backward(call(module.part, x).sum());
  if (engine.step().skipped) throw FaultError("the step was skipped");
}

std::string message_of(const std::function<void(World&)>& body) {
  std::string message;
  in_world(1, [&](World& world) {
    try {
      body(world);
    } catch (const std::exception& error) {
      message = error.what();
    }
  });
  return message;
}

TEST(CheckingMode, AStepWithoutMistakesPasses) {
  EXPECT_EQ(message_of([](World& world) {
              run_step(
                  world, [](torch::Tensor&) {}, [](torch::Tensor&) {});
            }),
            "");
}

TEST(CheckingMode, WriteBeyondAGradientIsReported) {
  const std::string message = message_of([](World& world) {
    run_step(world, {}, [](torch::Tensor& weight) { weight.grad().data_ptr<float>()[16] = 1; });
  });
  EXPECT_NE(message.find("wrote beyond the gradient of part.inner.weight: at element 16"), std::string::npos)
      << message;
}

TEST(CheckingMode, ReadBeyondAParameterGivesNaN) {
  const std::string message = message_of([](World& world) {
    run_step(world, [](torch::Tensor& weight) { EXPECT_TRUE(std::isnan(weight.data_ptr<float>()[16])); });
  });
  EXPECT_EQ(message, "");
}

TEST(CheckingModeDeathTest, WriteToAParameterNamesIt) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto write = [](torch::Tensor& weight) {
    const torch::NoGradGuard none;
    weight.add_(1);
  };
  EXPECT_DEATH(in_world(1, [&](World& world) { run_step(world, write); }), "parameter part.inner.weight was written");
  EXPECT_DEATH(in_world(1, [&](World& world) { run_step(world, {}, write); }),
               "parameter part.inner.weight was written");
}

TEST(CheckingModeDeathTest, CopiedPointerAfterTheCallNamesTheParameter) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(in_world(1,
                        [](World& world) {
                          Layer module;
                          Engine engine(world, options(3, true));
                          const auto sharded = fully_shard(module, engine);
                          const float* copy = nullptr;
                          module.part->act = [&](torch::Tensor& weight) { copy = weight.data_ptr<float>(); };
                          const torch::NoGradGuard none;
                          call(module.part, torch::ones({2, 4}));
                          std::printf("%g\n", *copy);
                        }),
               "part.inner.weight");
}

}  // namespace
}  // namespace aliquot
