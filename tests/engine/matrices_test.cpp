// Tests that training with Muon gives the same bits as a reference loop over full matrices. This holds for every ZeRO
// stage and world size, with offload and in 16 bits. Memory use equals the plan, and the owners of matrices have about
// equal work.
#include <algorithm>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/proof/validate.h"
#include "optim/muon/muon.h"
#include "tests/engine/small_model.h"
#include "tests/support/adversarial_device.h"
#include "tests/support/cpu_seconds.h"
#include "tests/support/test_time_scale.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// The learning rate of matrices is twice that of the other parameters.
Settings with_muon(int stage, const Muon& muon = {.lr = 6e-4f}) {
  Settings settings;
  settings.options = {.zero_stage = stage, .accumulate = 2, .accumulate_into = AccumulateInto::kShard, .clip = 0.5};
  settings.options.optimizer = muon;
  return settings;
}

void expect_planned_memory(World& world, Engine& engine) {
  const Account planned = account(engine.plan().schedule);
  EXPECT_EQ(world.device().ledger().peak(), planned.peak);
  EXPECT_EQ(world.device().ledger().in_use_peak_bytes(), planned.peak_bytes);
}

struct Row {
  int ranks, stage;
};
class Matrices : public testing::TestWithParam<Row> {};

TEST_P(Matrices, AreBitwiseIdenticalToTheReference) {
  const auto [ranks, stage] = GetParam();
  for (const auto gather : {GatherMode::kCopy, GatherMode::kView}) {
    Settings settings = with_muon(stage);
    settings.options.gather = gather;
    const Outcome reference = train_without_engine(ranks, settings);
    EXPECT_GT(reference.norms[0], settings.options.clip) << "clipping is not exercised";
    EXPECT_LT(reference.losses.back(), reference.losses.front());
    World::threads(
        ranks, [&](World& world) { EXPECT_EQ(train(world, settings), reference) << "rank " << world.rank(); }, kHosts);
  }
}

TEST_P(Matrices, UseThePlannedMemory) {
  const auto [ranks, stage] = GetParam();
  const Settings settings = with_muon(stage);
  World::threads(
      ranks,
      [&](World& world) {
        EngineWithModel setup(world, settings);
        for (int step = 0; step < 2; ++step) {
          for (int m = 0; m < 2; ++m) train_micro_batch(setup.engine, setup.model, step, m, world.rank());
          EXPECT_FALSE(setup.engine.step().skipped);
        }
        expect_planned_memory(world, setup.engine);
      },
      kHosts);
}

TEST_P(Matrices, MatchTheReferenceIn16Bits) {
  const auto [ranks, stage] = GetParam();
  for (const auto form : {MasterForm::kSplit, MasterForm::kFp32}) {
    Settings settings = with_muon(stage, {.lr = 6e-4f, .products = DType::kBFloat16});
    settings.options.precision = {.compute = DType::kBFloat16, .gradients = DType::kBFloat16, .master = form};
    const Outcome reference = train_without_engine(ranks, settings);
    EXPECT_EQ(train_on(ranks, settings), reference);
  }
}

TEST_P(Matrices, OffloadDoesNotChangeResults) {
  const auto [ranks, stage] = GetParam();
  Settings settings = with_muon(stage);
  settings.options.moments = DType::kBFloat16;  // stochastic rounding does not depend on where the state is stored
  const Outcome in_memory = train_on(ranks, settings);
  for (const Offload to : {Offload::kHost, Offload::kDisk}) {
    settings.options.offload_state = to;
    settings.options.offload_state_to = testing::TempDir();
    EXPECT_EQ(train_on(ranks, settings), in_memory);
    if (stage < 3) continue;
    settings.options.offload_parameters = to;
    settings.options.offload_parameters_to = testing::TempDir();
    EXPECT_EQ(train_on(ranks, settings), in_memory);
  }
}

std::vector<Row> rows() {
  std::vector<Row> all;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const int stage : {0, 1, 2, 3}) all.push_back({ranks, stage});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Worlds, Matrices, testing::ValuesIn(rows()), [](const auto& test) {
  return fmt::format("{}Ranks_Stage{}", test.param.ranks, test.param.stage);
});

TEST(Muon, AdversarialSchedulingDoesNotChangeResults) {
  for (const int ranks : {2, 3}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const Offload offload : {Offload::kNone, Offload::kHost}) {
        Settings settings = with_muon(stage);
        settings.steps = 3;
        settings.options.offload_state = offload;
        const Outcome reference = train_without_engine(ranks, settings);
        for (uint64_t seed = 0; seed < 20; ++seed) {
          AdversarialScheduler adversary(
              seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
          World::threads(ranks,
                         [&](World& world) {
                           EXPECT_EQ(train(world, settings), reference)
                               << "seed " << seed << ", ZeRO stage " << stage << ", rank " << world.rank();
                         },
                         {.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }});
        }
      }
    }
  }
}

TEST(Muon, ReplicasDoNotChangeResults) {
  for (const int stage : {1, 2, 3}) {
    Settings settings = with_muon(stage);
    settings.options.accumulate = 1;  // with two micro-batches, replicas would add gradients in another order
    const Outcome reference = train_without_engine(4, settings);
    settings.options.replicas = 2;
    EXPECT_EQ(train_on(4, settings), reference) << stage;
  }
}

/// Trains six units, each with one bias and one matrix of the same shape. The matrices form several groups, and two
/// groups are in progress at a time. All ranks compute the same gradients. If the number of ranks is a power of two,
/// the result is therefore bitwise identical to the result on one rank.
std::vector<float> train_squares(World& world, EngineOptions options) {
  constexpr int kUnits = 6, kSteps = 3;
  constexpr int64_t kSide = 48;
  options.optimizer = Muon{.lr = 6e-4f};
  Engine engine(world, options);
  float *values[kUnits] = {}, *gradients[kUnits] = {}, *bias[kUnits] = {}, *bias_gradient[kUnits] = {};
  for (int u = 0; u < kUnits; ++u) {
    Unit& unit = engine.add_unit(fmt::format("u{}", u));
    unit.add("weight", {kSide, kSide}, &values[u], &gradients[u]);
    unit.add("bias", {kSide}, &bias[u], &bias_gradient[u], {.decayed = false});
  }
  engine.materialize([](const ParameterSpec& parameter, int64_t offset, std::span<float> to) {
    for (std::size_t i = 0; i < to.size(); ++i)
      to[i] = initial_value(parameter.tensor.name, offset + static_cast<int64_t>(i));
  });
  EXPECT_GE(engine.plan().matrix_groups.size(), world.rank_count() > 3 ? 1u : 2u);
  Stream& compute = engine.compute_stream();
  for (int step = 0; step < kSteps; ++step) {
    engine.micro_batch();
    for (int u = 0; u < kUnits; ++u) const auto live = engine.units()[u].forward();
    for (int u = kUnits - 1; u >= 0; --u) {
      const auto live = engine.units()[u].backward();
      compute.run([u, step, value = values[u], to = gradients[u], of_bias = bias_gradient[u]] {
        for (int64_t i = 0; i < kSide * kSide; ++i)
          to[i] = 0.125f * value[i] + initial_value(fmt::format("{} {}", u, step), i);
        for (int64_t i = 0; i < kSide; ++i) of_bias[i] = initial_value(fmt::format("bias {} {}", u, step), i);
      });
    }
    EXPECT_FALSE(engine.step().skipped);
  }
  expect_planned_memory(world, engine);
  std::vector<float> all;
  for (int u = 0; u < kUnits; ++u) {
    for (const char* name_in_unit : {"weight", "bias"}) {
      const auto own = engine.read(fmt::format("u{}.{}", u, name_in_unit));
      all.insert(all.end(), own.begin(), own.end());
    }
  }
  return all;
}

TEST(Muon, SeveralMatrixGroupsGiveTheResultsOfOneRank) {
  std::vector<float> alone;
  World::threads(
      1, [&](World& world) { alone = train_squares(world, {.zero_stage = 0}); }, kHosts);
  for (const int ranks : {2, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const Offload offload : {Offload::kNone, Offload::kHost}) {
        for (uint64_t seed = 0; seed < 6; ++seed) {
          const EngineOptions options{.zero_stage = stage, .gather = GatherMode::kCopy, .offload_state = offload};
          AdversarialScheduler adversary(
              seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
          World::threads(ranks,
                         [&](World& world) {
                           EXPECT_TRUE(train_squares(world, options) == alone)
                               << ranks << " ranks, ZeRO stage " << stage << ", seed " << seed;
                         },
                         {.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }});
        }
      }
    }
  }
}

/// A skipped step changes neither momentum nor weights nor the update count.
TEST(Muon, ASkippedStepChangesNothing) {
  for (const int stage : {0, 1, 2, 3}) {
    World::threads(
        3,
        [&](World& world) {
          Settings settings = with_muon(stage);
          settings.options.accumulate = 1;
          EngineWithModel with(world, settings), without(world, settings);
          for (int step = 0; step < 4; ++step) {
            if (step == 2) {
              train_micro_batch(with.engine, with.model, 9, 0, world.rank(), INFINITY);
              EXPECT_TRUE(with.engine.step().skipped);
            }
            for (EngineWithModel* setup : {&with, &without}) {
              train_micro_batch(setup->engine, setup->model, step, 0, world.rank());
              EXPECT_FALSE(setup->engine.step().skipped);
            }
          }
          EXPECT_EQ(read_all(with.engine), read_all(without.engine)) << stage;
        },
        kHosts);
  }
}

TEST(Muon, SavesMomentumOfMatricesAndMomentsOfOtherParameters) {
  World::threads(
      2,
      [](World& world) {
        EngineWithModel setup(world, with_muon(3));
        std::vector<std::string> paths;
        for (const StateTensor& tensor : setup.engine.state().tensors) paths.push_back(tensor.path);
        const auto has = [&](const char* path) { return std::ranges::count(paths, path) == 1; };
        EXPECT_TRUE(has("optimizer/layer.0.weight/momentum_buffer"));
        EXPECT_FALSE(has("optimizer/layer.0.weight/exp_avg"));
        EXPECT_TRUE(has("optimizer/layer.0.bias/exp_avg"));
        EXPECT_TRUE(has("optimizer/layer.2.weight/exp_avg_sq")) << "declared with matrix = false";
        EXPECT_EQ(paths.size(), 7u + 2u + 2u * 5u);
      },
      kHosts);
}

TEST(Muon, ThrowsWithUpdatesInBackward) {
  Policy policy{.update_in_backward = true};
  policy.matrix_updates.emplace();
  const ModelSpec model{.units = {{"a", {{.tensor = {"a.weight", {8, 8}}}}}}, .uses = {{0}}};
  EXPECT_THROW(plan(model, policy, Topology::one_host(2)), UsageError);
}

/// A model like GPT-2 with `count` blocks.
ModelSpec blocks(int count, int64_t width) {
  ModelSpec model;
  for (int b = 0; b < count; ++b) {
    const std::string name = fmt::format("h.{}", b);
    UnitSpec unit{name, {}, GradientMode::kAdd};
    const auto matrix = [&](const char* name_in_unit, int64_t rows, int64_t columns) {
      unit.parameters.push_back({.tensor = {fmt::format("{}.{}", name, name_in_unit), {rows, columns}}});
    };
    matrix("qkv", width, 3 * width), matrix("proj", width, width);
    matrix("fc", width, 4 * width), matrix("out", 4 * width, width);
    unit.parameters.push_back({.tensor = {name + ".norm", {width}}});
    model.uses.push_back({static_cast<UnitId>(model.units.size())});
    model.units.push_back(std::move(unit));
  }
  return model;
}

TEST(MatrixGroups, OwnersHaveAboutEqualWork) {
  const ModelSpec model = blocks(48, 1600);
  for (const int ranks : {1, 2, 3, 4, 8, 16, 64}) {
    Policy policy;
    policy.matrix_updates.emplace();
    const Plan planned = plan(model, policy, Topology::one_host(ranks));
    std::size_t matrices = 0;
    double busiest = 0, all = 0;
    for (const MatrixGroup& group : planned.matrix_groups) {
      matrices += group.matrices.size();
      busiest += group.work;
      for (const OwnedMatrix& matrix : group.matrices) all += orthogonalize_multiply_adds(matrix.shape, 5);
      EXPECT_EQ(group.in_place, ranks == 1);
    }
    EXPECT_EQ(matrices, 4u * 48u);
    const double share = all / ranks;
    fmt::print("{} ranks: {} groups, the busiest owners have {:.2f} times the average work\n", ranks,
               planned.matrix_groups.size(), busiest / share);
    EXPECT_LE(busiest, share * (ranks > 16 ? 1.4 : 1.15)) << ranks;
    EXPECT_TRUE(validate(planned).empty());
  }
}

TEST(MatrixGroups, TenThousandUnitsOnAThousandRanksArePlannedInSeconds) {
  const ModelSpec model = blocks(10000, 64);
  Policy policy{.gather = GatherMode::kCopy, .offload_state = Offload::kHost};
  policy.matrix_updates.emplace();
  Plan planned;
  const double limit = 5 * test::test_time_scale();
  const double taken =
      test::reference_cpu_seconds(limit, [&] { planned = plan(model, policy, Topology::one_host(1024)); });
  fmt::print("{} groups in {:.2f} s\n", planned.matrix_groups.size(), taken);
  EXPECT_GT(planned.matrix_groups.size(), 10u);
  EXPECT_LT(taken, limit);
}

}  // namespace
}  // namespace aliquot
