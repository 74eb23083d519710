// Tests that other plans of the same step give the same bits: rewritten plans (rivals.h), and plans without the
// optimizations of the planner. A result that depends on the order of lanes, on addresses, or on memory that a plan
// leaves uninitialized would differ.
#include "tests/engine/rivals/rivals.h"

#include <atomic>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdexcept>

#include "engine/plan/plan_rewriter.h"
#include "tests/engine/blocks_training.h"
#include "tests/engine/plan/chain_model.h"
#include "tests/engine/rivals/schedule_text.h"
#include "tests/engine/small_model.h"
#include "tests/support/adversarial_device.h"
#include "tests/support/scoped_ranks_per_node.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// Engines run rewritten plans while this object exists. Counts the plans that differ from the planner's.
class Rewriting {
 public:
  explicit Rewriting(const testing::Rival& rival) {
    changed = 0;
    set_plan_rewriter([rival](std::vector<Plan>& stages) {
      std::vector<uint64_t> before;
      for (const Plan& plan : stages) before.push_back(hash(plan));
      rival.rewrite(stages);
      for (std::size_t s = 0; s < stages.size(); ++s) changed += hash(stages[s]) != before[s] ? 1 : 0;
    });
  }
  ~Rewriting() { set_plan_rewriter(nullptr); }
  static inline std::atomic<int> changed;
};

/// The number of runs of other plans that were compared.
class RivalCount : public ::testing::Environment {
 public:
  void TearDown() override { fmt::print("compared {} runs of other plans\n", count); }
  static inline int count = 0;
};
[[maybe_unused]] const auto* counted = ::testing::AddGlobalTestEnvironment(new RivalCount);

/// Expects that `run` returns the same with every rival of the plans that it makes.
template <typename Run>
void expect_equal_results(const std::string& what, const Run& run) {
  const auto expected = run();
  for (const testing::Rival& rival : testing::all_rivals()) {
    const Rewriting rewriting(rival);
    EXPECT_TRUE(run() == expected) << what << ", " << rival.name;
    ++RivalCount::count;
  }
}

/// Options whose plans have different operations. All of them also run with ZeRO stages 0 to 3.
std::vector<EngineOptions> all_options(int stage) {
  using enum Offload;
  std::vector<EngineOptions> all = {
      {.zero_stage = stage},
      {.zero_stage = stage, .accumulate = 3, .accumulate_into = AccumulateInto::kShard, .prefetch = 2},
      {.zero_stage = stage, .accumulate = 4, .reproducible = true},
      {.zero_stage = stage, .precision = {.compute = DType::kBFloat16, .master = MasterForm::kFp32}, .accumulate = 2},
      {.zero_stage = stage, .update_in_backward = true, .clip = 0},
      {.zero_stage = stage, .optimizer = Muon{}},
      {.zero_stage = stage, .optimizer = AdamW8bit{}, .check_state = true},
      {.zero_stage = stage, .offload_state = kHost}};
  if (stage == 3) {
    all.push_back({.zero_stage = 3, .accumulate = 2, .prefetch = 0, .keep_gathered = 2, .gather = GatherMode::kCopy});
    all.push_back({.zero_stage = 3, .gather = GatherMode::kCopy, .offload_parameters = kHost});
  }
  return all;
}

class Rivals : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ZeroStages, Rivals, ::testing::Values(0, 1, 2, 3));

TEST_P(Rivals, OfSmallModelsGiveTheSameBits) {
  for (const EngineOptions& options : all_options(GetParam())) {
    for (const int ranks : {1, 4}) {
      const std::string what = fmt::format("{} ranks, ZeRO stage {}, {}, {} micro-batches", ranks, options.zero_stage,
                                           name(options.optimizer), options.accumulate);
      expect_equal_results(what, [&] { return train_on(ranks, {.options = options}); });
    }
  }
}

TEST_P(Rivals, OfReplicasAndEvaluationsGiveTheSameBits) {
  const EngineOptions replicas{.zero_stage = GetParam(), .replicas = 2, .accumulate = 2};
  expect_equal_results("replicas", [&] { return train_on(4, {.options = replicas}); });
  const EngineOptions evaluated{.zero_stage = GetParam()};
  expect_equal_results("evaluations", [&] { return freeze_and_evaluate(3, {.options = evaluated}); });
}

TEST_P(Rivals, OfReplaysGiveTheSameBits) {
  for (const EngineOptions& options : {EngineOptions{.zero_stage = GetParam(), .accumulate = 2, .replay_every = 2},
                                       EngineOptions{.zero_stage = GetParam(),
                                       .accumulate = 2,
                                       .accumulate_into = AccumulateInto::kShard,
                                       .offload_state = Offload::kHost,
                                       .replay_every = 1}}) {
    expect_equal_results("replays", [&] {
      std::vector<float> parameters;
      World::threads(
          3,
          [&](World& world) {
            EngineWithModel setup(world, {.options = options});
            auto& [model, engine] = setup;
            for (int64_t step = 1; step <= 4; ++step) {
              while (const auto work = engine.next())
                run_use(engine, model, *work, samples(step, work->micro_batch, work->data_coordinate));
              EXPECT_FALSE(engine.step().skipped);
            }
            const std::vector<float> own = read_all(engine);
            if (world.rank() == 0) parameters = own;
          },
          kHosts);
      return parameters;
    });
  }
}

TEST_P(Rivals, OfPipelinesGiveTheSameBits) {
  for (const int stages : {2, 3}) {
    const EngineOptions options{.zero_stage = GetParam(),
                                .accumulate = 2 * stages + 1,
                                .accumulate_into = AccumulateInto::kShard,
                                .recompute = 2};
    for_schedules(options, stages, false, [&](const EngineOptions& pipelined) {
      expect_equal_results(describe(pipelined), [&] { return train_by_passes(2, pipelined); });
    });
  }
}

TEST_P(Rivals, OfTensorGroupsGiveTheSameBits) {
  for (const int replicas : {1, 2}) {
    const EngineOptions options{
        .zero_stage = GetParam(), .replicas = replicas, .accumulate = 2, .tensor = 2, .gather = GatherMode::kCopy};
    expect_equal_results("tensor groups", [&] { return train_on(8, {.options = options}); });
  }
}

TEST_P(Rivals, OfQuantizedSumsGiveTheSameBits) {
  const test::ScopedRanksPerNode two_nodes(2);
  const EngineOptions options{
      .zero_stage = GetParam(), .accumulate = 2, .quantize_weights = GetParam() == 3, .quantize_gradients = true};
  expect_equal_results("quantized", [&] { return train_on(4, {.options = options}); });
}

/// Queued compute work, random order of lanes: rivals also wait for all that they need.
TEST_P(Rivals, DoNotDependOnTheOrderOfLanes) {
  const EngineOptions options{.zero_stage = GetParam(), .accumulate = 2, .prefetch = 2, .gather = GatherMode::kAuto};
  const Outcome expected = train_on(3, {.options = options});
  for (const testing::Rival& rival : testing::all_rivals()) {
    const Rewriting rewriting(rival);
    for (uint64_t seed = 0; seed < 6; ++seed) {
      AdversarialScheduler adversary(
          seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
      const WorldOptions world{.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }};
      EXPECT_TRUE(train_on(3, {.options = options}, world) == expected) << rival.name << ", seed " << seed;
      ++RivalCount::count;
    }
  }
}

/// Plans without prefetch, kept units, views and shared slots give the bits of plans with them.
TEST(PlansWithoutOptimizations, GiveTheSameBits) {
  for (const int ranks : {2, 4}) {
    for (const bool reproducible : {false, true}) {
      const EngineOptions plain{.zero_stage = 3,
                                .accumulate = 4,
                                .prefetch = 0,
                                .keep_gathered = 0,
                                .gather_for = kGatherForPass,
                                .gather = GatherMode::kCopy,
                                .reproducible = reproducible};
      const Outcome expected = train_on(ranks, {.options = plain});
      for (const int prefetch : {1, 2, 3}) {
        for (const int kept : {0, 2}) {
          for (const int gather_for : {kGatherForAuto, kGatherForStep, 2}) {
            for (const GatherMode gather : {GatherMode::kCopy, GatherMode::kView}) {
              EngineOptions options = plain;
              options.prefetch = prefetch, options.keep_gathered = kept, options.gather_for = gather_for;
              options.gather = gather;
              EXPECT_TRUE(train_on(ranks, {.options = options}) == expected)
                  << ranks << " ranks, prefetch " << prefetch << ", kept " << kept << ", gather for " << gather_for;
              ++RivalCount::count;
            }
          }
        }
      }
    }
  }
}

/// Each kind of rival, except the parsed schedule, differs from the plan.
TEST(AllRivals, DifferFromThePlan) {
  const EngineOptions options{.zero_stage = 3, .accumulate = 2, .prefetch = 2, .gather = GatherMode::kCopy};
  for (const testing::Rival& rival : testing::all_rivals()) {
    const Rewriting rewriting(rival);
    train_on(2, {.options = options});
    if (rival.name == "printed and parsed") {
      EXPECT_EQ(Rewriting::changed, 0);
    } else {
      EXPECT_GT(Rewriting::changed, 0) << rival.name;
    }
  }
}

/// The parser reads every field: a changed field prints another text.
TEST(ScheduleText, HasEveryField) {
  const ModelSpec model = testing::chain(3);
  const Schedule schedule = plan(model, {.zero_stage = 3}, Topology::one_host(2)).schedule;
  const std::string text = testing::full_text(schedule);
  EXPECT_EQ(testing::full_text(testing::schedule_of(text)), text);
  const auto expect_other_text = [&](const auto& change) {
    Schedule other = schedule;
    change(other);
    EXPECT_NE(testing::full_text(other), text);
    EXPECT_EQ(testing::full_text(testing::schedule_of(testing::full_text(other))), testing::full_text(other));
  };
  expect_other_text([](Schedule& s) { s.operations[1].verb = Verb::kNorm; });
  expect_other_text([](Schedule& s) { s.operations[1].group = GroupId::kWorld; });
  expect_other_text([](Schedule& s) { s.operations[1].lane = Lane::kIo; });
  expect_other_text([](Schedule& s) { ++s.operations[1].operand; });
  expect_other_text([](Schedule& s) { ++s.operations[1].micro_batch; });
  expect_other_text([](Schedule& s) { ++s.operations[1].peer_offset_bytes; });
  expect_other_text([](Schedule& s) { ++s.operations[1].collective; });
  expect_other_text([](Schedule& s) { s.operations[1].after.push_back({0, GroupId::kShard, true}); });
  expect_other_text([](Schedule& s) { ++s.buffers[1].offset_bytes; });
  expect_other_text([](Schedule& s) { ++s.buffers[1].last; });
  expect_other_text([](Schedule& s) { ++s.stream_bytes; });
  expect_other_text([](Schedule& s) { s.view = !s.view; });
  EXPECT_THROW(testing::schedule_of("operation forward 0"), std::runtime_error);
  EXPECT_THROW(testing::schedule_of("operation forwards 0 0 0 0 0 0 0"), std::runtime_error);
}

}  // namespace
}  // namespace aliquot
