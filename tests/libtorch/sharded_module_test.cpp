// Trains a sharded LibTorch module, and compares it with the same module trained by LibTorch alone.
#include <atomic>
#include <cmath>
#include <filesystem>
#include <gtest/gtest.h>
#include <mutex>

#include "libtorch/call.h"

#include "engine/run/memory/guard_range.h"
#include "sharding/world.h"
#include "tests/libtorch/small_modules.h"

namespace aliquot {
namespace {

using namespace testing_torch;

constexpr int kSteps = 4, kSequences = 12;  // kSequences is the size of the global batch

const std::string kTied = "head.weight";  // the same tensor as wte.weight, the only name that the engine lists

struct Trained {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> parameters;
};

torch::Tensor tokens_of(int step) {
  torch::Tensor tokens = torch::arange(kSequences * (kContext + 1), torch::kLong) + step * 7919;
  return (tokens * tokens * 31 % 101 % kVocabulary).view({kSequences, kContext + 1});
}

/// Mean loss over `rows` sequences of the batch, starting at `first`.
torch::Tensor loss_of(Gpt& model, const torch::Tensor& tokens, int64_t first, int64_t rows) {
  const torch::Tensor own = tokens.narrow(0, first, rows);
  const torch::Tensor logits = model.forward(own.narrow(1, 0, kContext));
  return torch::nn::functional::cross_entropy(logits.reshape({-1, kVocabulary}),
                                              own.narrow(1, 1, kContext).reshape({-1}));
}

enum class Rule { kSgd, kAdamW };

std::unique_ptr<torch::optim::Optimizer> optimizer_of(Gpt& model, Rule rule) {
  std::vector<torch::Tensor> parameters;  // without the tied weight, which LibTorch's optimizer would update twice
  for (const auto& each : model.named_parameters()) {
    if (each.key() != kTied) parameters.push_back(each.value());
  }
  if (rule == Rule::kSgd)
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  return std::make_unique<torch::optim::AdamW>(
      parameters, torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.1));
}

Trained train_plain(Rule rule) {
  Gpt model;
  model.initialize();
  const auto optimizer = optimizer_of(model, rule);
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    const torch::Tensor loss = loss_of(model, tokens_of(step), 0, kSequences);
    optimizer->zero_grad();
    loss.backward();
    optimizer->step();
    trained.losses.push_back(loss.item<double>());
  }
  for (const auto& each : model.named_parameters()) {
    if (each.key() == kTied) continue;
    const torch::Tensor flat = each.value().detach().contiguous();
    trained.parameters[each.key()] = {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
  }
  return trained;
}

Trained train_sharded(int rank_count, const EngineOptions& options, int accumulate = 1) {
  Trained trained;
  World::threads(rank_count,
                 [&](World& world) {
                   at::set_num_threads(1);
                   Gpt model;
                   model.initialize();
                   EngineOptions how = options;
                   how.accumulate = accumulate;
                   Engine engine(world, how);
                   const auto sharded = fully_shard(model, engine);
                   const int64_t rows = kSequences / rank_count / accumulate;
                   for (int step = 0; step < kSteps; ++step) {
                     double mean = 0;
                     for (int micro = 0; micro < accumulate; ++micro) {
                       engine.micro_batch();
                       const torch::Tensor loss =
                           loss_of(model, tokens_of(step), (micro * rank_count + world.rank()) * rows, rows);
                       loss.backward();
                       mean += loss.item<double>() / rank_count / accumulate;
                     }
                     EXPECT_FALSE(engine.step().skipped);
                     world.sum({&mean, 1});
                     if (world.rank() == 0) trained.losses.push_back(mean);
                   }
                   for (const auto& each : model.named_parameters()) {
                     if (each.key() == kTied) continue;
                     const std::vector<float> values = engine.read(each.key());
                     if (world.rank() == 0) trained.parameters[each.key()] = values;
                   }
                 },
                 {.device = DeviceChoice::kHost, .timeout_seconds = 60});
  return trained;
}

EngineOptions options_at(int zero_stage, Rule rule = Rule::kSgd) {
  EngineOptions options{.zero_stage = zero_stage, .clip = 0};
  if (rule == Rule::kSgd) {
    options.optimizer = Sgd{.lr = 0.05f};
  } else {
    options.optimizer = AdamW{.lr = 1e-2f};
  }
  return options;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], tolerance) << "step " << i;
}

void expect_near(const Trained& a, const Trained& b) {
  expect_near(a.losses, b.losses, 1e-5);
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (const auto& [name, values] : a.parameters) {
    ASSERT_EQ(values.size(), b.parameters.at(name).size()) << name;
    double worst = 0;
    for (size_t i = 0; i < values.size(); ++i)
      worst = std::max(worst, std::fabs(1.0 * values[i] - b.parameters.at(name)[i]));
    EXPECT_LT(worst, 1e-5) << name;
  }
}

TEST(ShardedModule, MatchesUnshardedTraining) {
  const Trained plain = train_plain(Rule::kSgd);
  EXPECT_LT(plain.losses.back(), plain.losses.front() - 0.1)
      << "the loss did not fall by 0.1, so the comparison below is meaningless";
  for (const int rank_count : {1, 2, 3}) {
    const Trained replicated = train_sharded(rank_count, options_at(0));
    expect_near(plain, replicated);
    for (const int stage : {1, 2, 3}) {
      const Trained sharded = train_sharded(rank_count, options_at(stage));
      EXPECT_EQ(sharded.losses, replicated.losses) << "ZeRO stage " << stage << " on " << rank_count;
      EXPECT_EQ(sharded.parameters, replicated.parameters) << "ZeRO stage " << stage << " on " << rank_count;
    }
  }
}

/// Compares losses only. The gradient of the attention keys' bias is rounding error, which Adam turns into full-size
/// updates.
TEST(ShardedModule, MatchesUnshardedTrainingWithAdamW) {
  const Trained plain = train_plain(Rule::kAdamW);
  expect_near(plain.losses, train_sharded(2, options_at(3, Rule::kAdamW)).losses, 2e-4);
}

TEST(ShardedModule, AccumulatesMicroBatches) {
  const Trained plain = train_plain(Rule::kSgd);
  for (const int stage : {0, 2, 3}) expect_near(plain, train_sharded(2, options_at(stage), 3));
}

TEST(ShardedModule, CopyGatherMatchesViewGather) {
  EngineOptions copies = options_at(3);
  copies.gather = GatherMode::kCopy;
  const Trained viewed = train_sharded(2, options_at(3)), copied = train_sharded(2, copies);
  EXPECT_EQ(viewed.losses, copied.losses);
  EXPECT_EQ(viewed.parameters, copied.parameters);
}

}  // namespace
}  // namespace aliquot
