// Sharded LibTorch modules: repeated calls, several outputs, frozen layers, evaluation, exceptions and usage errors.
#include <filesystem>
#include <gtest/gtest.h>

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

EngineOptions options(int zero_stage = 3) {
  return {.zero_stage = zero_stage, .optimizer = Sgd{.lr = 0.1f, .momentum = 0}, .clip = 0};
}

torch::Tensor values(std::vector<int64_t> shape) {
  const int64_t count = c10::multiply_integers(shape);
  return torch::sin(torch::arange(count, torch::kFloat)).view(shape);
}

void fill(torch::nn::Module& module) {
  const torch::NoGradGuard none;
  for (auto& each : module.parameters()) each.copy_(values(each.sizes().vec()));
}

/// Shards the module, runs one step on its loss, and returns the values of `parameter`.
template <typename M, typename Loss>
std::vector<float> parameter_after_step(World& world, M& module, const char* parameter, const ShardOptions& how,
                                        const Loss& loss) {
  Engine engine(world, options());
  const auto sharded = fully_shard(module, engine, how);
  engine.micro_batch();
  sharded->backward(loss(module));
  EXPECT_FALSE(engine.step().skipped);
  return engine.read(parameter);
}

/// Returns the parameter minus 0.1 times the gradient that LibTorch computes: the expected result of one step.
template <typename M, typename Loss>
std::vector<float> parameter_after_manual_step(M& module, const char* parameter, const Loss& loss) {
  loss(module).backward();
  const torch::Tensor weight = module.named_parameters()[parameter];
  const torch::Tensor after = weight.detach() - 0.1 * weight.grad();
  return {after.data_ptr<float>(), after.data_ptr<float>() + after.numel()};
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-6) << i;
}

/// Two linear layers. forward() calls the first one twice.
struct TwoLayerModule : torch::nn::Module {
  torch::nn::Linear a{4, 4}, b{4, 2};
  TwoLayerModule() {
    register_module("a", a);
    register_module("b", b);
  }
  torch::Tensor forward(const torch::Tensor& x) { return call(b, torch::tanh(call(a, torch::tanh(call(a, x))))); }
};

TEST(ModuleUse, SubmoduleCalledTwiceIsListedTwice) {
  const auto loss = [](TwoLayerModule& m) { return m.forward(values({3, 4})).square().sum(); };
  TwoLayerModule alone;
  fill(alone);
  const auto expected = parameter_after_manual_step(alone, "a.weight", loss);
  in_world(2, [&](World& world) {
    TwoLayerModule module;
    fill(module);
    expect_near(parameter_after_step(world, module, "a.weight", {.calls = {"a", "a", "b"}}, loss), expected);
  });
}

TEST(ModuleUse, LayersOfASequentialAreSeparateUnits) {
  const auto make = [] {
    torch::nn::Sequential layers(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
    fill(*layers);
    return layers;
  };
  const auto loss = [](torch::nn::SequentialImpl& m) { return call(m, values({3, 4})).square().sum(); };
  auto alone = make();
  const auto expected = parameter_after_manual_step(*alone, "0.weight", loss);
  in_world(2, [&](World& world) {
    auto layers = make();
    expect_near(parameter_after_step(world, *layers, "0.weight", {}, loss), expected);
  });
}

/// A module with a submodule that returns two tensors. The loss may use only one of them.
struct TwoOutputModule : torch::nn::Module {
  struct PartImpl : torch::nn::Module {
    torch::nn::Linear left{4, 4}, right{4, 4};
    PartImpl() {
      register_module("left", left);
      register_module("right", right);
    }
    std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& x) { return {left(x), right(x)}; }
  };
  std::shared_ptr<PartImpl> part = register_module("part", std::make_shared<PartImpl>());
};

TEST(ModuleUse, ForwardMayReturnTensorsThatTheLossDoesNotUse) {
  for (const bool both : {true, false}) {
    const auto loss = [both](TwoOutputModule& m) {
      const auto [left, right] = call(m.part, values({3, 4}));
      return both ? (left * right).sum() : left.square().sum();
    };
    TwoOutputModule alone;
    fill(alone);
    const auto expected = parameter_after_manual_step(alone, "part.left.weight", loss);
    in_world(2, [&](World& world) {
      TwoOutputModule module;
      fill(module);
      expect_near(parameter_after_step(world, module, "part.left.weight", {}, loss), expected);
    });
  }
}

TEST(ModuleUse, FrozenLayersKeepTheirValuesAndOthersTrain) {
  in_world(2, [&](World& world) {
    for (const char* frozen : {"a", "b"}) {
      TwoLayerModule module;
      fill(module);
      for (auto& each : module.named_parameters()) each.value().set_requires_grad(each.key().substr(0, 1) != frozen);
      const auto before = values({4, 4});
      const auto after =
          parameter_after_step(world, module, "a.weight", {.calls = {"a", "a", "b"}}, [](TwoLayerModule& m) {
            return m.forward(values({3, 4})).square().sum();
          });
      const bool same = std::equal(after.begin(), after.end(), before.data_ptr<float>());
      EXPECT_EQ(same, std::string(frozen) == "a");
    }
  });
}

TEST(ModuleUse, ForwardWithoutGradientsIsAnEvaluation) {
  in_world(2, [&](World& world) {
    TwoLayerModule module;
    fill(module);
    const auto expected = [&] {
      const torch::NoGradGuard none;
      return module.forward(values({3, 4}));
    }();
    Engine engine(world, options());
    const auto sharded = fully_shard(module, engine, {.calls = {"a", "a", "b"}});
    for (int step = 0; step < 2; ++step) {
      {
        const torch::NoGradGuard none;
        const torch::Tensor found = module.forward(values({3, 4}));
        EXPECT_EQ(found.equal(expected), step == 0);
      }
      engine.micro_batch();
      module.forward(values({3, 4})).square().sum().backward();
      EXPECT_FALSE(engine.step().skipped);
    }
  });
}

TEST(ModuleUse, ExceptionInForwardOrBackwardSkipsOnlyThatStep) {
  in_world(2, [&](World& world) {
    TwoLayerModule module;
    fill(module);
    Engine engine(world, options());
    const auto sharded = fully_shard(module, engine, {.calls = {"a", "a", "b"}});
    enum class Where { kFirstCall, kBetweenCalls, kBackward };
    for (const Where where : {Where::kFirstCall, Where::kBetweenCalls, Where::kBackward}) {
      const bool own = world.rank() == 1;
      try {
        const Pass pass = engine.micro_batch();
        torch::Tensor x = values({3, 4});
        if (own && where == Where::kFirstCall) x = values({3, 5});  // wrong number of input features
        if (own && where == Where::kBetweenCalls) {
          call(module.a, x);
          throw std::runtime_error("a bad sample");
        }
        torch::Tensor y = module.forward(x);
        if (own) y.register_hook([](const at::Tensor&) { throw std::runtime_error("the user's kernel failed"); });
        sharded->backward(y.square().sum());
        EXPECT_FALSE(own);
      } catch (const std::exception&) {
        EXPECT_TRUE(own);
      }
      const StepReport report = engine.step();
      EXPECT_TRUE(report.skipped);
      EXPECT_EQ(report.abandoned_by, 1);
      engine.micro_batch();
      sharded->backward(module.forward(values({3, 4})).square().sum());
      EXPECT_FALSE(engine.step().skipped);
    }
  });
}

TEST(ModuleUse, ComputesInBf16WithFp32Gradients) {
  in_world(2, [&](World& world) {
    EngineOptions how = options();
    how.precision = {.compute = DType::kBFloat16};
    Gpt model;
    model.initialize();
    model.to(torch::kBFloat16);
    Engine engine(world, how);
    const auto sharded = fully_shard(model, engine);
    double first = 0, last = 0;
    for (int step = 0; step < 8; ++step) {
      const torch::Tensor ids = (torch::arange(4 * kContext, torch::kLong) * 7 % kVocabulary).view({4, kContext});
      engine.micro_batch();
      const torch::Tensor logits = model.forward(ids).to(torch::kFloat);
      const torch::Tensor loss =
          torch::nn::functional::cross_entropy(logits.reshape({-1, kVocabulary}), ids.reshape({-1}));
      loss.backward();
      EXPECT_FALSE(engine.step().skipped);
      (step == 0 ? first : last) = loss.item<double>();
    }
    EXPECT_LT(last, first - 0.2);
  });
}

/// Returns the message of the UsageError that `body` throws on one rank, or an empty string.
std::string usage_error(const std::function<void(World&)>& body) {
  std::string message;
  in_world(1, [&](World& world) {
    try {
      body(world);
    } catch (const UsageError& error) {
      message = error.what();
    }
  });
  return message;
}

/// All ranks refuse the module before anything is declared, so the engine can be used for another model.
TEST(ModuleUse, PipelinesAndTensorGroupsAreRefused) {
  in_world(2, [&](World& world) {
    TwoLayerModule module;
    const auto expect_refusal = [&](const EngineOptions& how, const std::string& message) {
      Engine engine(world, how);
      try {
        fully_shard(module, engine);
        ADD_FAILURE() << "expected: " << message;
      } catch (const UsageError& error) {
        EXPECT_EQ(error.what(), message);
      }
      EXPECT_TRUE(engine.units().empty());
    };
    EngineOptions how = options();
    how.pipeline = 2;
    expect_refusal(how,
                   "EngineOptions::pipeline is 2, but LibTorch allocates the activations of a module, so the engine "
                   "cannot send them to the next pipeline stage: set it to 1 and shard over all ranks with zero_stage "
                   "or replicas");
    how = options();
    how.tensor = 2;
    expect_refusal(how,
                   "EngineOptions::tensor is 2, but LibTorch allocates the activations of a module, so the engine "
                   "cannot exchange them in a tensor group: set it to 1 and shard over all ranks with zero_stage or "
                   "replicas");
    const torch::NoGradGuard none;
    EXPECT_TRUE(module.forward(values({3, 4})).defined()) << "the module is unchanged";
  });
}

TEST(ModuleUse, UsageErrorsNameTheSubmodule) {
  const auto sharding = [](ShardOptions how, bool half = false) {
    return usage_error([&](World& world) {
      TwoLayerModule module;
      if (half) module.to(torch::kBFloat16);
      Engine engine(world, options());
      fully_shard(module, engine, how);
    });
  };
  EXPECT_EQ(sharding({.calls = {"a", "c"}}), "ShardOptions::calls: the module has no submodule c");
  EXPECT_EQ(
      sharding({.calls = {"a"}}),
      "parameter b.weight belongs to no unit: move it to a submodule, or add its submodule to ShardOptions::calls");
  EXPECT_NE(sharding({}, true).find("parameter a.weight is BFloat16 but the engine computes in Float"),
            std::string::npos);
  EXPECT_EQ(usage_error([](World& world) {
              TwoOutputModule module;
              Engine engine(world, options());
              fully_shard(module, engine, {.calls = {"part", "part.left"}});
            }),
            "ShardOptions::calls: submodule part contains part.left: only one of them can be a unit");
  EXPECT_EQ(usage_error([](World& world) {
              TwoLayerModule module;
              Engine engine(world, options());
              const auto sharded = fully_shard(module, engine);  // the units are a and b, in this order
              engine.micro_batch();
              module.forward(values({3, 4}));
            }),
            "forward of a was opened, but the declared order expects forward of b");
  EXPECT_EQ(usage_error([](World& world) {
              TwoLayerModule module;
              Engine engine(world, options());
              const auto sharded = fully_shard(module, engine, {.calls = {"a", "a", "b"}});
              engine.micro_batch();
              sharded->backward(module.forward(values({3, 4})).sum());
              sharded->backward(module.forward(values({3, 4})).sum());
            }),
            "forward of a was opened, but the declared order expects step()");
}

TEST(ModuleUse, ReplacedGradientIsReported) {
  EXPECT_NE(usage_error([](World& world) {
              TwoLayerModule module;
              fill(module);
              Engine engine(world, options());
              const auto sharded = fully_shard(module, engine, {.calls = {"a", "a", "b"}});
              engine.micro_batch();
              const torch::Tensor loss = module.forward(values({3, 4})).square().sum();
              loss.backward({}, true, true);  // create_graph makes autograd allocate new gradients
            }).find("was replaced during backward"),
            std::string::npos);
}

TEST(ModuleUseDeathTest, AccessOutsideACallNamesTheParameter) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(in_world(1,
                        [](World& world) {
                          install_fault_names();
                          TwoLayerModule module;
                          Engine engine(world, options());
                          const auto sharded = fully_shard(module, engine);
                          std::cout << module.b->weight.sum().item<float>();
                        }),
               "parameter b.weight was accessed outside of an open scope");
}

}  // namespace
}  // namespace aliquot
