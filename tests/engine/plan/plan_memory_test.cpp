// Compares the memory of plans with formulas.

#include <algorithm>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "engine/plan/schedule.h"
#include "engine/plan/sizes.h"
#include "engine/proof/validate.h"
#include "optim/norm_runs.h"
#include "optim/norm_tree.h"
#include "sharding/comm/reduce_staging.h"
#include "tests/engine/plan/chain_model.h"
#include "tests/engine/plan/random_plan.h"

namespace aliquot {
namespace {

constexpr int kUnits = 8;
constexpr int64_t kStateBytes = 8;  // two fp32 moments per parameter

class PeakMemory : public ::testing::TestWithParam<int> {
 protected:
  int64_t ranks() const { return GetParam(); }
  int64_t unit() const { return int64_t{840} * kBlockElements * 4; }  // full parameters of one unit
  int64_t parameters() const { return kUnits * unit(); }
  int64_t states() const { return parameters() / 4 * kStateBytes; }
  int64_t shard(int64_t bytes) const { return bytes / ranks(); }
  int64_t squares() const { return shard(parameters()) / 4 / kBlockElements * 8; }  // one double per block of all units

  Plan planned(Policy policy) const {
    policy.state_bytes_per_block = kStateBytes * kBlockElements;
    return plan(testing::chain(kUnits, unit() / 4), policy, Topology::one_host(static_cast<int>(ranks())));
  }
  /// Memory during the norm: the squares of all units, and the norm parts of all ranks.
  int64_t norm(const Plan& plan) const { return squares() + norm_part_bytes(plan) * ranks(); }

  struct Expected {
    int64_t parameters, gradients, optimizer, slots, communication;
  };
  void expect_peaks(const Plan& plan, const Expected& expected) const {
    const Account account = aliquot::account(plan.schedule);
    const BytesByCategory all = {expected.parameters, expected.gradients,     expected.optimizer,
                                 expected.slots,      expected.communication, plan.schedule.stream_bytes};
    for (int c = 0; c < kCategoryCount; ++c) {
      EXPECT_EQ(account.peak[static_cast<std::size_t>(c)], all[static_cast<std::size_t>(c)])
          << "ZeRO stage " << plan.schedule.zero_stage << ", " << name(static_cast<Category>(c)) << "\n"
          << text(plan);
    }
  }
};

TEST_P(PeakMemory, Stage0ShardsNothing) {
  const Plan p = planned({.zero_stage = 0});
  expect_peaks(p, {parameters(), parameters(), states(), 0, norm(p)});
}

TEST_P(PeakMemory, Stage1ShardsOptimizerState) {
  const Plan p = planned({.zero_stage = 1});
  expect_peaks(p, {parameters(), parameters(), shard(states()), 0, norm(p)});
}

/// Full gradients are in slots. Backward writes one slot. With prefetch, another slot is reduced at the same time.
TEST_P(PeakMemory, Stage2ShardsGradients) {
  for (const int prefetch : {0, 1, 3}) {
    const Plan p = planned({.zero_stage = 2, .prefetch = prefetch});
    const int64_t slots = prefetch == 0 ? 1 : 2;
    expect_peaks(p, {parameters(), shard(parameters()), shard(states()), slots * unit(), norm(p)});
  }
}

/// With accumulation in full gradients, ZeRO stage 2 keeps each gradient slot for the entire step.
TEST_P(PeakMemory, Stage2AccumulatingInFullHoldsFullGradients) {
  const Plan p =
      planned({.zero_stage = 2, .micro_batch_count = 3, .accumulate_into = AccumulateInto::kFull, .prefetch = 0});
  expect_peaks(p, {parameters(), shard(parameters()), shard(states()), parameters(), norm(p)});
}

/// Accumulating into the shard costs one more shard of a unit, for the sum of one micro-batch.
TEST_P(PeakMemory, AccumulatingIntoTheShardAddsOneShardOfAUnit) {
  const Plan p = planned({.zero_stage = 2, .micro_batch_count = 3, .prefetch = 0});
  const int64_t partial = shard(unit());
  const int64_t last_reduce = squares() + partial;  // the partial sum exists together with the squares, before the norm
  expect_peaks(p, {parameters(), shard(parameters()), shard(states()), unit(), std::max(norm(p), last_reduce)});
}

TEST_P(PeakMemory, Stage3ByCopyHoldsShardsAndSlots) {
  for (const int prefetch : {0, 1, 2, 4}) {
    for (const int keep : {0, 1, 2, 5, 8}) {
      const Plan p =
          planned({.zero_stage = 3, .prefetch = prefetch, .keep_gathered = keep, .gather = GatherMode::kCopy});
      const int64_t gradient_slots = prefetch == 0 ? 1 : 2;
      // During the first backward, all kept units are gathered and one gradient is written. From the second backward
      // on, at least one kept unit is released. The unit in use and the prefetched units are always gathered.
      const int64_t first = std::max(keep, prefetch + 1) + 1;
      const int64_t second = std::max(keep - 1, prefetch + 1) + gradient_slots;
      expect_peaks(
          p, {shard(parameters()), shard(parameters()), shard(states()), std::max(first, second) * unit(), norm(p)});
    }
  }
}

/// A view needs no slot, because it maps the shards of all ranks.
TEST_P(PeakMemory, Stage3ByViewHoldsShardsOnly) {
  const Plan p = planned({.zero_stage = 3, .gather = GatherMode::kView});
  expect_peaks(p, {shard(parameters()), shard(parameters()), shard(states()), 2 * unit(), norm(p)});
  EXPECT_EQ(p.schedule.bytes(Space::kSharedRange), parameters());
}

/// The arena has no gaps at its peak: its size equals the sum of the buffers that exist at the peak, up to alignment.
TEST_P(PeakMemory, ArenaSizeEqualsThePeak) {
  for (const int stage : {0, 1, 2, 3}) {
    const Plan p = planned({.zero_stage = stage, .gather = GatherMode::kCopy});
    const int64_t peak = account(p.schedule).step_peak_bytes;
    EXPECT_GE(p.schedule.bytes(Space::kArena), peak);
    EXPECT_LE(p.schedule.bytes(Space::kArena), peak + kUnits * 256) << "ZeRO stage " << stage;
  }
}

/// The staging between steps uses memory that is free between steps. Its size is bounded below and above, and is at
/// most what the largest tensor needs.
TEST_P(PeakMemory, StagingBetweenStepsDoesNotRaiseALargePeak) {
  constexpr int64_t kKiB = 1024;
  const Plan slots = planned({.zero_stage = 3, .gather = GatherMode::kCopy});  // the slots exceed 1 MiB
  EXPECT_EQ(slots.schedule.stream_bytes, 1024 * kKiB / (kStreamCopies * 4) * (kStreamCopies * 4));
  EXPECT_EQ(account(slots.schedule).peak_bytes, account(slots.schedule).step_peak_bytes);
  const Plan unsharded = planned({.zero_stage = 0});
  const int64_t free_bytes = account(unsharded.schedule).step_peak_bytes - persistent_bytes(unsharded.schedule);
  EXPECT_LE(free_bytes, 1024 * kKiB);
  EXPECT_EQ(unsharded.schedule.stream_bytes,
            std::max(free_bytes, 64 * kKiB) / (kStreamCopies * 4) * (kStreamCopies * 4));
  const Plan small = plan(testing::chain(kUnits, 100), {}, Topology::one_host(static_cast<int>(ranks())));
  EXPECT_EQ(small.schedule.stream_bytes, kStreamCopies * 100 * 4);
}

/// The replicate group of shard 0 (ranks 0 and 2) is on one node. The group of shard 1 (ranks 1 and 3) spans two nodes.
TEST(Staging, OfReplicaAllReduceFitsEveryReplicateGroup) {
  Topology topology = Topology::one_host(4);
  topology.node_of_rank = {0, 1, 0, 2};
  const Plan p = plan(testing::chain(2, 1 << 14), {.zero_stage = 2, .replica_count = 2}, topology);
  Topology two_nodes = Topology::one_host(2);
  two_nodes.node_of_rank = {0, 1};
  const auto staging = std::ranges::find(p.schedule.buffers, Role::kExchangeStaging, &PlannedBuffer::role);
  ASSERT_NE(staging, p.schedule.buffers.end());
  EXPECT_EQ(staging->size_bytes, reduce_staging(two_nodes, (1 << 14) / 4).size_bytes());
  EXPECT_NE(text(p).find("+X0"), std::string::npos);
  prove(p);
}

INSTANTIATE_TEST_SUITE_P(Ranks, PeakMemory, ::testing::Values(1, 2, 3, 4, 8), ::testing::PrintToStringParamName());

/// The table of the ZeRO paper: model states per rank for 7.5 billion parameters. Here all values are fp32: a parameter
/// has 4 bytes, its gradient 4 and its optimizer state 8.
TEST(ZeroTable, ModelStatesMatchThePaper) {
  constexpr int kCount = 75;
  constexpr int64_t kElements = int64_t{1} << 20, kPsi = kCount * kElements * 95;
  fmt::print("{:>6} {:>9} {:>9} {:>9} {:>9}   GB of model states per rank, {:.2f} billion parameters\n", "ranks",
             "stage 0", "stage 1", "stage 2", "stage 3", static_cast<double>(kPsi) / 1e9);
  for (const int ranks : {1, 4, 16, 64, 256, 1024}) {
    std::string line = fmt::format("{:>6}", ranks);
    for (const int stage : {0, 1, 2, 3}) {
      const Plan p = plan(testing::chain(kCount, kElements * 95), {.zero_stage = stage}, testing::hosts(ranks, 8));
      const BytesByCategory peak = account(p.schedule).peak;
      const int64_t states = peak[0] + peak[1] + peak[2];  // parameters, gradients, optimizer
      const int64_t unsharded = kPsi * (stage == 0 ? 16 : stage == 1 ? 8 : stage == 2 ? 4 : 0);
      const int64_t sharded = kPsi * (stage == 0 ? 0 : stage == 1 ? 8 : stage == 2 ? 12 : 16);
      EXPECT_EQ(states, unsharded + sharded / ranks) << ranks << " ranks, ZeRO stage " << stage;
      line += fmt::format(" {:>9.2f}", static_cast<double>(states) / 1e9);
    }
    fmt::print("{}\n", line);
  }
}

/// The sums over subtrees that a rank contributes to the norm.
std::vector<LocalNormSums> sums_of_rank(const Plan& plan, int rank) {
  std::vector<LocalNormSums> sums;
  for (const FlatSpec& flat : plan.flats) {
    if (!flat.trainable) continue;
    std::vector<NormTensor> tensors;
    for (const TensorSpec& tensor : flat.layout.tensors()) {
      tensors.push_back({tensor.name, (tensor.element_count() + kBlockElements - 1) / kBlockElements});
    }
    std::vector<NormSpan> spans;
    for (const Piece& piece : flat.layout.pieces(rank)) {
      spans.push_back({piece.tensor, piece.tensor_offset / kBlockElements,
                       (piece.count + kBlockElements - 1) / kBlockElements, piece.shard_offset / kBlockElements});
    }
    sums.emplace_back(NormTree(tensors), spans);
  }
  return sums;
}

/// norm_part_bytes() is an upper bound on the size of the sums that each rank contributes to the gradient norm.
TEST(LocalNormSums, FitIntoTheirBuffer) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const testing::RandomCase drawn = testing::draw(seed);
    const Plan planned = plan(drawn.model, {.zero_stage = 1}, drawn.topology);
    for (int rank = 0; rank < drawn.topology.rank_count(); ++rank) {
      std::size_t node_count = 0;
      for (const LocalNormSums& of_flat : sums_of_rank(planned, rank)) node_count += of_flat.nodes().size();
      EXPECT_LE(static_cast<int64_t>(node_count * sizeof(double)), norm_part_bytes(planned)) << "seed " << seed;
    }
  }
}

Topology gpus(int ranks) {
  Topology topology = Topology::one_host(ranks);
  std::iota(topology.gpu_of_rank.begin(), topology.gpu_of_rank.end(), 0);
  return topology;
}

/// A model with long and short tensors.
ModelSpec model_of_random_tensors(std::mt19937& random) {
  ModelSpec model;
  for (int u = 0; u < 3; ++u) {
    UnitSpec unit{.name = fmt::format("u{}", u), .parameters = {}, .gradients = GradientMode::kAdd};
    for (int t = std::uniform_int_distribution(1, 6)(random); t > 0; --t) {
      const int64_t most = kMaxRunLeaves * kBlockElements << std::uniform_int_distribution(0, 4)(random);
      unit.parameters.push_back(
          {.tensor = {fmt::format("u{}.{}", u, t), {std::uniform_int_distribution<int64_t>(1, most)(random)}}});
    }
    model.units.push_back(std::move(unit));
    model.uses.push_back({u});
  }
  return model;
}

/// On GPUs, the sizes of the table of runs and of the partial sums are upper bounds.
TEST(NormRuns, FitIntoTheirBuffers) {
  std::mt19937 random(5);
  int64_t most_partial_sums = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const int ranks = std::uniform_int_distribution(1, 5)(random);
    const Plan planned = plan(model_of_random_tensors(random), {.zero_stage = trial % 4}, gpus(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<LeafRun> runs;
      for (const LocalNormSums& of_flat : sums_of_rank(planned, rank)) {
        for (const LocalNormSums::Run& run : of_flat.runs()) runs.push_back({run.place, run.block_count, 0});
      }
      const SplitRuns split = split_runs(runs, 0);
      EXPECT_LE(std::ssize(split.runs) * static_cast<int64_t>(sizeof(LeafRun)),
                needed_bytes(planned, Role::kNormRuns, -1));
      EXPECT_LE(split.partial_count * static_cast<int64_t>(sizeof(double)),
                needed_bytes(planned, Role::kNormPartialSums, -1));
      most_partial_sums = std::max(most_partial_sums, split.partial_count);
    }
  }
  EXPECT_GT(most_partial_sums, 30);
}

/// One tensor of 5000 blocks: on one rank, its node has 3 partial sums, for which the bound is 2 + 1.
TEST(NormRuns, AreCountedInPlansOfGpusOnly) {
  const auto size_of = [](const Plan& plan, Role role) {
    int64_t size_bytes = 0;
    for (const PlannedBuffer& buffer : plan.schedule.buffers) {
      if (buffer.role == role) size_bytes += buffer.size_bytes;
    }
    return size_bytes;
  };
  const ModelSpec model = testing::chain(1, 5000 * kBlockElements), small = testing::chain(3);
  const Plan large = plan(model, {.zero_stage = 2}, gpus(1));
  const int64_t node_count = norm_part_bytes(large) / static_cast<int64_t>(sizeof(double)) - 1;
  EXPECT_EQ(size_of(large, Role::kNormPartialSums), 3 * 8);
  EXPECT_EQ(size_of(large, Role::kNormRuns), (node_count + 3) * 24);
  EXPECT_EQ(size_of(plan(small, {}, gpus(2)), Role::kNormPartialSums), 0);
  EXPECT_GT(size_of(plan(small, {}, gpus(2)), Role::kNormRuns), 0);
  const Plan host = plan(model, {.zero_stage = 2}, Topology::one_host(1));
  EXPECT_EQ(size_of(host, Role::kNormRuns) + size_of(host, Role::kNormPartialSums), 0);
  EXPECT_TRUE(validate(large).empty());
  EXPECT_EQ(size_of(evaluation_of(large), Role::kNormRuns), size_of(large, Role::kNormRuns));
  EXPECT_EQ(size_of(evaluation_of(large), Role::kNormPartialSums), 0);
}

/// For each operation, the number of passes that began before it on this pipeline stage.
std::vector<int> passes_begun(const Plan& plan) {
  std::vector<int> begun;
  std::tuple<bool, int32_t, int32_t> pass{false, -1, -1};  // direction, virtual stage and micro-batch
  int count = 0;
  for (const Operation& operation : plan.schedule.operations) {
    if (is_model_code(operation.verb)) {
      const std::tuple now{operation.verb == Verb::kForward, plan.stage.run_of_use(operation.operand).index,
                           operation.micro_batch};
      if (now != pass) ++count;
      pass = now;
    }
    begun.push_back(count);
  }
  return begun;
}

/// A send runs in parallel with the next pass, because that pass does not get the memory of the sent data.
TEST(PipelineMemory, TheNextPassDoesNotWaitForASend) {
  ModelSpec model = testing::chain(kUnits, 4096);
  model.activations.uses.assign(
      kUnits, {.output_bytes = 1 << 16, .kept_bytes = 1 << 16, .recomputable = false, .output_in_backward = false});
  model.activations.backward_bytes = 1 << 16;
  using enum PipelineSchedule;
  for (const auto schedule : {k1F1B, kGpipe, kInterleaved}) {
    Policy policy{.zero_stage = 2, .micro_batch_count = 6, .pipeline = 2, .pipeline_schedule = schedule};
    policy.virtual_stages = schedule == kInterleaved ? 2 : 1;
    policy.pipeline_cut.assign(static_cast<std::size_t>(virtual_stage_count(policy)),
                               kUnits / static_cast<int>(virtual_stage_count(policy)));
    for (const Plan& plan : plan_pipeline(model, policy, testing::hosts(4, 4))) {
      const std::vector<int> begun = passes_begun(plan);
      const auto& operations = plan.schedule.operations;
      for (std::size_t id = 0; id < operations.size(); ++id) {
        if (!is_model_code(operations[id].verb)) continue;
        for (const Wait& wait : operations[id].after) {
          if (wait.of_previous_step || !is_send(operations[wait.operation].verb)) continue;
          EXPECT_GT(begun[id], begun[wait.operation] + 1)
              << title(plan, static_cast<OperationId>(id)) << " waits for " << title(plan, wait.operation) << "\n"
              << text(plan);
        }
      }
    }
  }
}

/// The memory of a step suffices for a replay, so the account of the step is that of both.
TEST(ReplayMemory, IsThatOfTheStep) {
  int compared = 0;
  for (uint64_t seed = 0; seed < 6000; ++seed) {
    const bool pipeline = seed % 2 == 0;
    const testing::RandomCase drawn = pipeline ? testing::draw_pipeline(seed) : testing::draw(seed);
    if (drawn.policy.replay_every == 0) continue;
    const std::vector<Plan> stages = plan_pipeline(drawn.model, drawn.policy, drawn.topology);
    const std::vector<Plan> replays = replays_of(stages);
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const Account step = account(stages[s].schedule), replay = account(replays[s].schedule);
      for (int c = 0; c < kCategoryCount; ++c)
        ASSERT_LE(replay.peak[static_cast<std::size_t>(c)], step.peak[static_cast<std::size_t>(c)])
            << name(static_cast<Category>(c)) << ", " << testing::describe(seed, drawn);
      ASSERT_LE(replay.peak_bytes, step.peak_bytes) << testing::describe(seed, drawn);
      ASSERT_LE(replays[s].schedule.bytes(Space::kArena), stages[s].schedule.bytes(Space::kArena))
          << testing::describe(seed, drawn) << text(stages[s]) << text(replays[s]);
      ++compared;
    }
  }
  EXPECT_GT(compared, 500);
}

}  // namespace
}  // namespace aliquot
