// Whole runs of up to 8 thread ranks with random faults. Each run draws a mesh and options, trains, saves, evaluates,
// and fails at random fault points. It then continues from its newest checkpoint on another mesh with other options,
// until it has trained all steps. It must end with the bits of an undisturbed run on one rank.
//
// ALIQUOT_RANDOM_FAULTS="FIRST COUNT" runs COUNT seeds from FIRST. A failure prints the seed and what happened.
#include <array>
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <sstream>

#include "checkpoint/background_saver.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "kernels/system/fault_point.h"
#include "tests/checkpoint/support.h"
#include "tests/engine/small_model.h"
#include "tests/support/adversarial_device.h"

namespace aliquot {
namespace {

using namespace testing_model;

constexpr int kSteps = 5, kGlobalBatch = 8;

/// What all attempts of a run have in common, because it determines the bits.
struct Task {
  bool bf16 = false;
  bool momentum = false;
  friend auto operator<=>(const Task&, const Task&) = default;
};

/// One attempt to end the run, on a mesh and with options of its own.
struct Attempt {
  int ranks = 1;
  EngineOptions options;
  bool in_background = false;  // saves beside training
  int save_every = 1;
  bool adversarial = false;
  uint64_t seed = 0;

  std::string text() const {
    return fmt::format("{} ranks, ZeRO stage {}, {} replicas, tensor {}, {} micro-batches, replays every {}{}{}", ranks,
                       options.zero_stage, options.replicas, options.tensor, options.accumulate, options.replay_every,
                       in_background ? ", background saves" : "", adversarial ? ", adversarial device" : "");
  }
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int below(int end) { return static_cast<int>(random_() % static_cast<uint64_t>(end)); }
  bool coin() { return below(2) == 0; }
  template <typename T>
  T one_of(std::initializer_list<T> all) {
    return *(all.begin() + below(static_cast<int>(all.size())));
  }
  uint64_t number() { return random_(); }

 private:
  std::mt19937_64 random_;
};

EngineOptions options_of(const Task& task) {
  EngineOptions options{.reproducible = true, .clip = 0.5};
  if (task.bf16) options.precision = {.compute = DType::kBFloat16, .master = MasterForm::kFp32};
  if (task.momentum) options.optimizer = Sgd{.momentum = 0.9f};
  return options;
}

Attempt draw_attempt(const Task& task, Draw& draw) {
  Attempt attempt;
  EngineOptions& options = attempt.options = options_of(task);
  options.tensor = draw.one_of({1, 1, 2});
  const int data_ranks = draw.one_of({1, 2, 4, 8 / options.tensor});
  attempt.ranks = data_ranks * options.tensor;
  options.replicas = data_ranks >= 2 && draw.coin() ? 2 : 1;
  options.zero_stage = draw.below(4);
  options.accumulate = kGlobalBatch / data_ranks;
  options.prefetch = draw.below(3);
  options.gather = options.zero_stage == 3 ? draw.one_of({GatherMode::kCopy, GatherMode::kView}) : GatherMode::kAuto;
  options.check_state = draw.below(4) == 0;
  options.replay_every = data_ranks > 1 ? draw.one_of({0, 1, 2}) : 0;
  if (draw.below(4) == 0) options.offload_state = draw.one_of({Offload::kHost, Offload::kDisk});
  if (options.offload_state == Offload::kDisk) {
    options.offload_state_to = std::filesystem::temp_directory_path();
    options.check_state = false;
  }
  attempt.in_background = draw.coin();
  attempt.save_every = 1 + draw.below(2);
  attempt.adversarial = draw.coin();
  attempt.seed = draw.number();
  return attempt;
}

/// Trains the rest of the run on one rank. Returns the parameters.
std::vector<float> train_rank(World& world, const Attempt& attempt, const std::filesystem::path& directory) {
  const EngineOptions& options = attempt.options;
  EngineWithModel setup(world, {.options = options});
  auto& [model, engine] = setup;
  State state = engine.state();
  int step = 0;
  if (const auto loaded = load_newest(state, world.communicator(), directory)) {
    engine.adopt(state);
    step = static_cast<int>(state.step);
  }
  BackgroundSaver saver(world.communicator(), snapshot_bytes(engine.state()), nullptr);
  const int data_ranks = world.rank_count() / options.tensor, data_rank = world.rank() / options.tensor;
  for (; step < kSteps; ++step) {
    // Reproducible sums add the ranks of one micro-batch before the next micro-batch.
    while (const auto work = engine.next())
      run_use(engine, model, *work, samples(step, 0, work->micro_batch * data_ranks + work->data_coordinate));
    if (engine.step().skipped) throw std::runtime_error("a step was skipped");
    evaluate(engine, model, step, data_rank);
    if ((step + 1) % attempt.save_every != 0) continue;
    State now = engine.state();
    now.step = step + 1;
    if (attempt.in_background) {
      saver.start(now, directory, {.keep_count = 2});
    } else {
      save(now, world.communicator(), directory, {.keep_count = 2});
    }
  }
  saver.collect();
  engine.check_copies();
  return read_all(engine);
}

std::vector<float> train(const Attempt& attempt, const std::filesystem::path& directory) {
  std::vector<float> parameters;
  AdversarialScheduler adversary(attempt.seed, attempt.seed % 2 == 0 ? AdversarialScheduler::Compute::kInline
                                                                     : AdversarialScheduler::Compute::kQueued);
  WorldOptions world = kHosts;
  world.timeout_seconds = 60;
  if (attempt.adversarial) world.make_device = [&](int) { return adversary.make_device(); };
  World::threads(
      attempt.ranks,
      [&](World& ranks) {
        std::vector<float> own = train_rank(ranks, attempt, directory);
        if (ranks.rank() == 0) parameters = std::move(own);
      },
      world);
  return parameters;
}

/// The parameters after an undisturbed run on one rank.
const std::vector<float>& expected_of(const Task& task) {
  static std::map<Task, std::vector<float>> all;
  std::vector<float>& expected = all[task];
  if (expected.empty()) {
    const test::TemporaryDirectory directory;
    Attempt alone{.options = options_of(task)};
    alone.options.accumulate = kGlobalBatch;
    expected = train(alone, directory.path());
  }
  return expected;
}

struct Counts {
  int runs = 0, attempts = 0, faults = 0;
};

/// Runs the seed to its end.
void run_seed(uint64_t seed, Counts& counts) {
  constexpr int kMaxAttempts = 6;  // the last one has no faults
  constexpr std::array kProbabilities = {0.0005, 0.002, 0.01};
  Draw draw(seed);
  const Task task{.bf16 = draw.coin(), .momentum = draw.coin()};
  const std::vector<float>& expected = expected_of(task);
  const test::TemporaryDirectory directory;
  std::string story = fmt::format("ALIQUOT_RANDOM_FAULTS=\"{} 1\"\n", seed);
  ++counts.runs;
  for (int number = 1; number <= kMaxAttempts; ++number) {
    const Attempt attempt = draw_attempt(task, draw);
    const double probability = kProbabilities[static_cast<std::size_t>(draw.below(3))];
    ++counts.attempts;
    set_random_faults({draw.number(), number < kMaxAttempts ? probability : 0});
    std::string error;
    std::vector<float> parameters;
    try {
      parameters = train(attempt, directory.path());
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    const std::vector<std::string> faults = set_random_faults({});
    counts.faults += static_cast<int>(faults.size());
    story += fmt::format("attempt {}: {}; faults: {}; {}\n", number, attempt.text(), fmt::join(faults, "; "),
                         error.empty() ? "ended" : error);
    if (error.empty()) {
      EXPECT_TRUE(parameters == expected) << story;
      return;
    }
    // Every error names an injected fault, also on ranks that another rank told to stop.
    EXPECT_NE(error.find("injected fault: throw at "), std::string::npos) << story;
  }
  ADD_FAILURE() << "the run did not end\n" << story;
}

TEST(RandomFaults, RunsThatContinueOnOtherMeshesEndWithTheSameBits) {
  uint64_t first = 1;
  int count = 40;
  if (const char* given = std::getenv("ALIQUOT_RANDOM_FAULTS")) std::istringstream(given) >> first >> count;
  Counts counts;
  for (int i = 0; i < count && !HasFailure(); ++i) run_seed(first + static_cast<uint64_t>(i), counts);
  fmt::print("{} runs, {} attempts, {} faults\n", counts.runs, counts.attempts, counts.faults);
  // A single seed may have no fault.
  EXPECT_GT(counts.faults, count >= 20 ? count / 2 : -1);
}

}  // namespace
}  // namespace aliquot
