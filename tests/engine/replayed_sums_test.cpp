// Tests that a rank which adds gradients over ranks wrongly is named (EngineOptions::replay_every). The tests change
// results of the kernel that adds, on one rank.
#include <atomic>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <optional>

#include "engine/cost/prices.h"
#include "engine/plan/reduce_recipe.h"
#include "kernels/elementwise/kernels.h"
#include "kernels/elementwise/kernels_host.h"
#include "kernels/system/error.h"
#include "tests/engine/plan/chain_model.h"
#include "tests/engine/small_model.h"
#include "tests/support/adversarial_device.h"

namespace aliquot {
namespace {

using namespace testing_model;

constexpr int64_t kAlways = 1000;

/// Which sums of a step a rank computes wrongly: its own, those that it repeats for other ranks, or both.
enum class Sums : uint8_t { kOwn, kRepeated, kBoth };

struct SumFault {
  int rank;
  int64_t first_step = 1, last_step = 1;
  Sums sums = Sums::kBoth;
  GroupId group = GroupId::kShard;
  int other_rank = -1;        // a second rank, whose repetitions are wrong in another bit
  bool freezes = false;       // layer.0 is frozen from step 3 on
  bool is_abandoned = false;  // rank 0 abandons step 4
};

/// The fault on this thread, which is a rank, in the current step.
struct Sabotage {
  bool is_active = false;
  std::size_t source_count = 0;  // number of ranks that the sums with the fault add
  int sums_per_unit = 1;         // the repetitions, then the own sum
  Sums sums = Sums::kBoth;
  std::byte flipped{4};
  int seen = 0;
};
thread_local Sabotage sabotage;

/// Units are reduced in the order of backward passes: layer.2, layer.1, layer.0, scale.
constexpr int kFaultyUnit = 1;
constexpr std::string_view kFaultyUnitName = "layer.1";
constexpr int64_t kFaultyElement = 3;

void add_wrongly(Stream& stream, const TreeSum& sum) {
  host_kernels().sum_tree(stream, sum);
  if (!sabotage.is_active || sum.bases.size() != sabotage.source_count) return;
  const int unit = sabotage.seen / sabotage.sums_per_unit;
  const bool is_own = sabotage.seen % sabotage.sums_per_unit == sabotage.sums_per_unit - 1;
  ++sabotage.seen;
  const bool matches = sabotage.sums == Sums::kBoth || is_own == (sabotage.sums == Sums::kOwn);
  if (unit != kFaultyUnit || !matches || sum.count <= kFaultyElement) return;
  stream.run([to = static_cast<std::byte*>(sum.to) + kFaultyElement * element_bytes(sum.to_dtype),
              flipped = sabotage.flipped] { to[1] ^= flipped; });
}

const Kernels& wrong_kernels() {
  static const Kernels kernels = [] {
    Kernels all = host_kernels();
    all.sum_tree = add_wrongly;
    return all;
  }();
  return kernels;
}

struct Found {
  ReplayError::Finding finding;
  int64_t step;
  std::string message;
};

/// Trains with a fault. Returns the finding, and the step in which it was thrown.
std::optional<Found> find(int ranks, const EngineOptions& options, const SumFault& fault, uint64_t seed = 1) {
  AdversarialScheduler scheduler(seed);
  std::atomic<int64_t> thrown_in = 0;
  try {
    World::threads(
        ranks,
        [&](World& world) {
          EngineWithModel setup(world, {.options = options});
          auto& [model, engine] = setup;
          const int group_size =
              fault.group == GroupId::kShard ? engine.plan().topology.rank_count() : options.replicas;
          for (int64_t step = 1; step <= 8; ++step) {
            if (world.rank() == 0) thrown_in = step;
            const bool is_step = step >= fault.first_step && step <= fault.last_step;
            const bool repeats = options.replay_every > 0 && step % options.replay_every == 0;
            if (fault.freezes && step == 3) {
              engine.set_trainable("layer.0", false);
              model.frozen[1] = model.frozen[2] = true;
            }
            const bool is_other = world.rank() == fault.other_rank;
            sabotage = {.is_active = is_step && (world.rank() == fault.rank || is_other),
                        .source_count = static_cast<std::size_t>(group_size),
                        .sums_per_unit = repeats ? 1 + repetition_count(engine.plan(), fault.group) : 1,
                        .sums = is_other ? Sums::kRepeated : fault.sums,
                        .flipped = std::byte(is_other ? 8 : 4)};
            if (fault.is_abandoned && step == 4 && world.rank() == 0) {
              engine.abandon();
            } else {
              while (const auto work = engine.next())
                run_use(engine, model, *work, samples(step, work->micro_batch, work->data_coordinate));
            }
            const StepReport report = engine.step();
            sabotage = {};
            EXPECT_EQ(report.abandoned_by, fault.is_abandoned && step == 4 ? 0 : -1);
          }
        },
        {.timeout_seconds = 60, .make_device = [&](int) { return scheduler.make_device(&wrong_kernels()); }});
  } catch (const ReplayError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kFault);
    return Found{error.finding(), thrown_in.load(), error.what()};
  }
  return std::nullopt;
}

/// Transient faults in step 4, and a permanent one from step 2 on.
std::vector<SumFault> faults_of(int rank, GroupId group = GroupId::kShard) {
  return {
      {rank, 4, 4, Sums::kOwn, group}, {rank, 4, 4, Sums::kRepeated, group}, {rank, 2, kAlways, Sums::kBoth, group}};
}

void expect_named(const std::optional<Found>& found, const SumFault& fault) {
  ASSERT_TRUE(found) << "rank " << fault.rank;
  EXPECT_EQ(found->finding.ranks, std::vector{fault.rank}) << found->message;
  EXPECT_EQ(found->finding.nodes, std::vector{0});
  EXPECT_TRUE(found->finding.is_decided);
  EXPECT_EQ(found->finding.unit, kFaultyUnitName);
  EXPECT_EQ(found->step, 4) << "a permanent fault is found within replay_every steps";
}

TEST(ReplayedSums, NameEveryRankThatAddsWrongly) {
  for (const int ranks : {3, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (int rank = 0; rank < ranks; ++rank) {
        for (const SumFault& fault : faults_of(rank)) {
          SCOPED_TRACE(fmt::format("{} ranks, ZeRO stage {}", ranks, stage));
          expect_named(find(ranks, {.zero_stage = stage, .replay_every = 4}, fault), fault);
        }
      }
    }
  }
}

TEST(ReplayedSums, NameRanksWithOtherTypesAndSeveralMicroBatches) {
  const std::vector<EngineOptions> all = {
      {.zero_stage = 2, .precision = {.compute = DType::kBFloat16, .gradients = DType::kBFloat16}},
      {.zero_stage = 1, .accumulate = 3, .accumulate_into = AccumulateInto::kFull},
      {.zero_stage = 3, .gather = GatherMode::kCopy, .optimizer = Muon{}}};
  for (EngineOptions options : all) {
    options.replay_every = 4;
    for (const SumFault& fault : faults_of(2)) expect_named(find(4, options, fault), fault);
  }
}

/// With several micro-batches that are reduced one by one, the wrong sum may be that of any of them.
TEST(ReplayedSums, NameTheRankWhateverTheMicroBatch) {
  const EngineOptions options{
      .zero_stage = 3, .accumulate = 2, .accumulate_into = AccumulateInto::kShard, .replay_every = 4};
  for (const SumFault& fault : faults_of(1)) expect_named(find(3, options, fault), fault);
}

TEST(ReplayedSums, NameRanksThatAddReplicasWrongly) {
  for (const int stage : {0, 2, 3}) {
    const EngineOptions options{.zero_stage = stage, .replicas = 3, .replay_every = 4};
    for (const int rank : {0, 3, 5}) {
      for (const SumFault& fault : faults_of(rank, GroupId::kReplica)) expect_named(find(6, options, fault), fault);
    }
  }
}

TEST(ReplayedSums, NameTheRankIfLayersAreFrozenOrTheStepIsAbandoned) {
  for (const int stage : {0, 1, 2, 3}) {
    for (SumFault fault : faults_of(1)) {
      fault.freezes = true;
      expect_named(find(3, {.zero_stage = stage, .replay_every = 4}, fault), fault);
      fault.freezes = false;
      fault.is_abandoned = true;
      expect_named(find(3, {.zero_stage = stage, .replay_every = 4}, fault), fault);
    }
  }
}

TEST(ReplayedSums, NameAllRanksIfThreeDiffer) {
  SumFault fault{1, 4, 4, Sums::kOwn};
  fault.other_rank = 0;
  const auto found = find(3, {.zero_stage = 2, .replay_every = 4}, fault);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->finding.ranks, (std::vector{0, 1, 2}));
  EXPECT_FALSE(found->finding.is_decided);
}

TEST(ReplayedSums, PriceCountsEveryMicroBatch) {
  const auto seconds = [](int accumulate, int stage) {
    return repetition_seconds(
        plan(testing::chain(3), {.zero_stage = stage, .micro_batch_count = accumulate, .replay_every = 5},
             Topology::one_host(4)),
        CostModel{});
  };
  EXPECT_GT(seconds(1, 2), 0);
  EXPECT_DOUBLE_EQ(seconds(4, 2), 4 * seconds(1, 2));
  EXPECT_DOUBLE_EQ(seconds(4, 0), seconds(1, 0)) << "stage 0 reduces once in a step";
}

/// The shard group of two ranks has no third rank, though there are six data-parallel ranks.
TEST(ReplayedSums, NameBothRanksWithoutAThird) {
  const auto alone = find(2, {.zero_stage = 2, .replay_every = 1}, {1, 3, 3, Sums::kOwn});
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->finding.ranks, (std::vector{0, 1}));
  EXPECT_FALSE(alone->finding.is_decided);
  EXPECT_EQ(alone->step, 3);
  const auto replicas = find(6, {.zero_stage = 2, .replicas = 3, .replay_every = 1}, {3, 3, 3, Sums::kOwn});
  ASSERT_TRUE(replicas);
  EXPECT_EQ(replicas->finding.ranks, (std::vector{2, 3}));
}

TEST(ReplayedSums, AreFoundWithAnySchedulingOfWork) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const SumFault fault{1, 4, 4, Sums::kOwn};
    expect_named(find(3, {.zero_stage = static_cast<int>(seed % 4), .replay_every = 4}, fault, seed), fault);
  }
}

TEST(ReplayedSums, MessageNamesRankUnitAndBlock) {
  const auto found = find(4, {.zero_stage = 3, .replay_every = 2}, {2, 2, 2, Sums::kOwn});
  ASSERT_TRUE(found);
  for (const char* part :
       {"step 2", "rank 2 (node 0, host ", "a wrong sum of gradients over ranks", "unit layer.1", "of layer.1.weight"})
    EXPECT_NE(found->message.find(part), std::string::npos) << part << " in " << found->message;
}

TEST(ReplayedSums, AreNotComparedBetweenReplays) {
  for (const int64_t step : {1, 2, 3}) EXPECT_FALSE(find(3, {.replay_every = 4}, {0, step, step, Sums::kOwn}));
}

}  // namespace
}  // namespace aliquot
