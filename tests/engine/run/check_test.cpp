// Tests that the checking mode does not change results, and that it finds defects when a scope closes.
#include <cmath>
#include <cstdlib>
#include <functional>
#include <gtest/gtest.h>

#include "engine/proof/validate.h"
#include "tests/engine/run/checked_pair.h"
#include "tests/support/adversarial_device.h"
#include "tests/support/scoped_ranks_per_node.h"

namespace aliquot {
namespace {

using namespace testing_model;

// Effects of the checking mode ----------------------------------------------------------------------------------------

TEST(Check, DoesNotChangeResults) {
  std::vector<Settings> all;
  for (const int stage : {0, 1, 2, 3}) {
    for (const GatherMode gather : {GatherMode::kCopy, GatherMode::kView}) {
      if (stage < 3 && gather == GatherMode::kView) continue;
      for (const DType compute : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        Settings settings;
        settings.options = {.zero_stage = stage, .precision = {.compute = compute}, .accumulate = 2};
        if (stage == 3) settings.options.gather = gather;
        all.push_back(settings);
      }
    }
  }
  all.emplace_back().options = {.zero_stage = 3, .offload_state = Offload::kHost, .offload_parameters = Offload::kHost};
  all.emplace_back().options = {.zero_stage = 2, .optimizer = Muon{}};
  all.emplace_back().options = {.zero_stage = 3, .reproducible = true};
  all.emplace_back().options = {.zero_stage = 2, .replicas = 2};
  for (Settings settings : all) {
    const Outcome reference = train_on(4, settings);
    settings.options.check = true;
    EXPECT_TRUE(train_on(4, settings) == reference) << settings.options.precision.describe() << title(settings.options);
  }
}

TEST(Check, DoesNotChangeResultsOfQuantizedTraining) {
  const test::ScopedRanksPerNode emulated_nodes(2);
  Settings settings;
  settings.nodes = 2;
  settings.options = {.zero_stage = 3, .quantize_weights = true, .quantize_gradients = true};
  const Outcome reference = train_on(4, settings);
  settings.options.check = true;
  EXPECT_TRUE(train_on(4, settings) == reference);
}

/// Under adversarial scheduling, the model's code may run after its scope has closed. The changes of page protection at
/// the beginning and the end of the scope are delayed in the same way.
TEST(Check, DoesNotChangeResultsUnderAdversarialScheduling) {
  for (const int stage : {0, 2, 3}) {
    Settings settings;
    settings.options = {.zero_stage = stage, .gather = GatherMode::kCopy};
    settings.steps = 2;
    const Outcome reference = train_without_engine(2, settings);
    settings.options.check = true;
    for (uint64_t seed = 0; seed < 10; ++seed) {
      AdversarialScheduler adversary(
          seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
      const WorldOptions options = {.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }};
      EXPECT_TRUE(train_on(2, settings, options) == reference) << "ZeRO stage " << stage << ", seed " << seed;
    }
  }
}

TEST(Check, MemoryMatchesThePlan) {
  for (const EngineOptions& options : every_stage(true)) {
    World::threads(
        2,
        [&](World& world) {
          Pair pair(world, options);
          for (int step = 0; step < 2; ++step) {
            pair.passes();
            EXPECT_EQ(pair.engine.step().gradient_norm, std::sqrt(3.0 * kCount));
          }
          for (Unit& unit : pair.engine.units()) const Scope live = unit.evaluate();
          EXPECT_EQ(world.device().ledger().peak(), account(pair.engine.plan().schedule).peak) << title(options);
        },
        kHosts);
  }
}

TEST(Check, IsEnabledByTheEnvironment) {
  World world = World::from_environment(kHosts);
  const auto checks = [&] {
    Pair pair(world, {});
    return pair.engine.plan().policy.check;
  };
  EXPECT_FALSE(checks());
  setenv("ALIQUOT_CHECK", "1", 1);
  EXPECT_TRUE(checks());
  setenv("ALIQUOT_CHECK", "0", 1);
  EXPECT_FALSE(checks());
  setenv("ALIQUOT_CHECK", "yes", 1);
  EXPECT_EQ(usage_error_message(checks), "invalid value 'yes' for ALIQUOT_CHECK: expected 0 or 1");
  unsetenv("ALIQUOT_CHECK");
}

TEST(Check, MustBeTheSameOnAllRanks) {
  const auto differ = [] {
    World::threads(
        2, [](World& world) { Pair pair(world, {.check = world.rank() == 1}); }, kHosts);
  };
  EXPECT_EQ(usage_error_message(differ),
            "the plan or options of rank 1 differ from those of rank 0: rank 0 has \"check false\", rank 1 has \"check "
            "true\"");
}

TEST(Check, ScheduleWithoutRedZonesIsRejected) {
  ModelSpec model;
  model.units.push_back({"a", {{.tensor = {"a.v", {256}}}, {.tensor = {"a.w", {256}}}}, GradientMode::kAdd});
  model.uses = {{0}};
  model.activations = {{{40, 40, 40}}, 40};
  const Plan good = plan(model, {.zero_stage = 2, .check = true}, Topology::one_host(2));
  EXPECT_TRUE(validate(good).empty());
  const auto finds = [](const Plan& bad, const std::string& words) {
    const std::vector<Defect> defects = validate(bad);
    return std::ranges::any_of(defects, [&](const Defect& defect) {
      return defect.kind == DefectKind::kPlace && defect.sentence.find(words) != std::string::npos;
    });
  };
  Plan bare = good;
  bare.flats = flats(model, 2);
  EXPECT_TRUE(finds(bare, "no red zone comes before a.w"));
  for (const Role role : {Role::kSavedActivations, Role::kActivationGradients}) {
    Plan small = good;
    for (PlannedBuffer& buffer : small.schedule.buffers) {
      if (buffer.role == role) buffer.size_bytes = 40;
    }
    EXPECT_TRUE(finds(small, "have 40 bytes and need 4096"));
  }
  Plan shared_page = good;
  for (PlannedBuffer& buffer : shared_page.schedule.buffers) {
    if (buffer.role == Role::kSavedActivations) buffer.offset_bytes += 256;
  }
  EXPECT_TRUE(finds(shared_page, "do not begin at a page boundary"));
}

// Defects found when a scope closes -----------------------------------------------------------------------------------

/// Calls `write` in the backward of b and expects that the next call of the engine throws `sentence`. Does so at every
/// ZeRO stage.
void expect_found_in_backward(const std::function<void(Pair&, const Scope&)>& write, const std::string& sentence) {
  for (const EngineOptions& options : every_stage(true)) {
    World world = World::from_environment(kHosts);
    Pair pair(world, options);
    pair.forward();
    {
      const Scope live = pair.engine.units()[1].backward();
      write(pair, live);
    }
    EXPECT_EQ(usage_error_message([&] { const Scope live = pair.engine.units()[0].backward(); }), sentence)
        << title(options);
  }
}

TEST(Check, FindsWritesBeyondGradients) {
  for (const int64_t element : {kCount, int64_t{255}, int64_t{256}, int64_t{380}}) {
    expect_found_in_backward([&](Pair& pair, const Scope&) { pair.gradient[1][element] += 1e-3f; },
                             fmt::format("backward b wrote beyond the gradient of b.w: at element {}, but the declared "
                                         "elements are 0 to 63 (found by EngineOptions::check)",
                                         element));
  }
}

TEST(Check, FindsWritesBeforeGradientsAndBeyondTheLastGradient) {
  expect_found_in_backward([](Pair& pair, const Scope&) { pair.gradient[1][-1] = 0; },
                           "backward b wrote before the gradient of b.w: at element -1, but the declared elements are "
                           "0 to 63 (found by EngineOptions::check)");
  expect_found_in_backward([](Pair& pair, const Scope&) { pair.gradient[2][-1] += 1; },
                           "backward b wrote before the gradient of b.bias: at element -1, but the declared elements "
                           "are 0 to 63 (found by EngineOptions::check)");
  expect_found_in_backward([](Pair& pair, const Scope&) { pair.gradient[2][64] += 1; },
                           "backward b wrote beyond the gradient of b.bias: at element 64, but the declared elements "
                           "are 0 to 63 (found by EngineOptions::check)");
}

TEST(Check, FindsWritesBeyondActivations) {
  expect_found_in_backward(
      [](Pair&, const Scope& live) { static_cast<char*>(live.memory().backward)[40] = 0; },
      "backward b wrote beyond the backward memory: at byte 40, but 40 bytes are declared (found by "
      "EngineOptions::check)");
  for (const EngineOptions& options : every_stage(true)) {
    World world = World::from_environment(kHosts);
    for (const auto member : {&UseMemory::output, &UseMemory::kept, &UseMemory::scratch}) {
      Pair pair(world, options);
      pair.engine.micro_batch();
      {
        const Scope live = pair.engine.units()[0].forward();
        static_cast<char*>(live.memory().*member)[43] = 0;
      }
      const std::string message = usage_error_message([&] { const Scope live = pair.engine.units()[1].forward(); });
      EXPECT_NE(message.find("forward a wrote beyond the "), std::string::npos) << message;
      EXPECT_NE(message.find(" memory of use 0: at byte 43, but 40 bytes are declared"), std::string::npos) << message;
    }
  }
}

/// If the write is in the last scope, step() is the call that throws.
TEST(Check, FindsWritesOfTheLastScope) {
  World world = World::from_environment(kHosts);
  Pair pair(world, {.check = true});
  pair.forward();
  pair.backward(1);
  {
    const Scope live = pair.engine.units()[0].backward();
    pair.gradient[0][64] = 7;
  }
  EXPECT_NE(usage_error_message([&] { (void)pair.engine.step(); }).find("beyond the gradient of a.w: at element 64"),
            std::string::npos);
  EXPECT_THROW((void)pair.engine.step(), FaultError) << "the engine is unusable after the failure";
}

TEST(Check, ReadsBeyondParametersReturnNaN) {
  for (const EngineOptions& options : every_stage(true)) {
    World world = World::from_environment(kHosts);
    Pair pair(world, options);
    pair.engine.micro_batch();
    const Scope live = pair.engine.units()[0].forward();
    EXPECT_EQ(pair.value[0][63], 1.0f);
    EXPECT_TRUE(std::isnan(pair.value[0][64])) << title(options);
    EXPECT_TRUE(std::isnan(pair.value[0][-1])) << title(options);
  }
}

}  // namespace
}  // namespace aliquot
