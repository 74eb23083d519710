// Tests of parameters that the ranks of a tensor group divide.
#include <functional>
#include <map>
#include <mutex>

#include "sharding/state_pieces.h"
#include "tests/engine/split_blocks.h"
#include "tests/support/adversarial_device.h"
#include "tests/support/scoped_ranks_per_node.h"
#include "tests/support/usage_error_message.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// The elements of all tensors of a state, by path.
using FullState = std::map<std::string, std::vector<std::byte>>;

/// Collects the pieces that the ranks save. Expects that they contain each element of each tensor once.
class StateCollector {
 public:
  void add(const State& state) {
    const std::lock_guard lock(mutex_);
    scalars_ = state.scalars;
    for (const StateTensor& tensor : state.tensors) {
      std::vector<std::byte>& full = state_[tensor.path];
      std::vector<int>& saved = saved_[tensor.path];
      full.resize(static_cast<std::size_t>(tensor.size_bytes()));
      saved.resize(static_cast<std::size_t>(tensor.element_count()));
      const int64_t each = element_bytes(tensor.dtype);
      for (const StatePiece& piece : tensor.pieces) {
        if (piece.copy) continue;
        for (int64_t i = 0; i < piece.count; ++i) {
          const int64_t element = element_at(piece, i);
          read_piece(tensor, piece, i * each, {full.data() + element * each, static_cast<std::size_t>(each)});
          ++saved[static_cast<std::size_t>(element)];
        }
      }
    }
  }

  const std::map<std::string, Scalar>& scalars() const { return scalars_; }
  FullState finish() const {
    for (const auto& [path, saved] : saved_) {
      EXPECT_EQ(std::ranges::count(saved, 1), std::ssize(saved)) << path;
    }
    return state_;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Scalar> scalars_;
  FullState state_;
  std::map<std::string, std::vector<int>> saved_;
};

struct Trained {
  TensorTrained results;
  FullState state;
  std::map<std::string, Scalar> scalars;
};

struct TrainingRun {
  int data_ranks = 1;
  EngineOptions options = {};
  WorldOptions world = kHosts;
  bool assigns = false;
  const Trained* initial = nullptr;  // the run that this one continues
  int first_step = 0, end_step = 3;
};

void train_rank(World& world, const TrainingRun& run, TensorTrained& trained, StateCollector& collector) {
  Engine engine(world, run.options);
  SplitBlocks blocks(engine, world.rank(), run.options.tensor, run.assigns);
  if (run.initial != nullptr) {
    State state = engine.state();
    for (const StateTensor& piece : state.tensors) write_elements(piece, 0, run.initial->state.at(piece.path));
    state.scalars = run.initial->scalars;
    state.step = run.first_step;
    engine.adopt(state);
  }
  trained = train_split_blocks(engine, blocks, run.first_step, run.end_step);
  if (run.end_step > run.first_step) expect_planned_peak(world, engine);
  collector.add(engine.state());
  world.communicator().gather_objects("");  // no rank destroys its state before the others have read theirs
}

/// Trains on thread ranks. Returns the results of the first rank of the last pipeline stage.
Trained train(const TrainingRun& run) {
  Trained trained;
  StateCollector collector;
  const int stage_ranks = run.data_ranks * run.options.tensor;
  World::threads(
      stage_ranks * run.options.pipeline,
      [&](World& world) {
        TensorTrained own;
        train_rank(world, run, own, collector);
        if (world.rank() == stage_ranks * (run.options.pipeline - 1)) trained.results = own;
      },
      run.world);
  trained.state = collector.finish();
  trained.scalars = collector.scalars();
  return trained;
}

std::string text(const EngineOptions& options) {
  return fmt::format("{} ranks in a tensor group, {} replicas, {} pipeline stages, ZeRO stage {}, recompute {}, {}",
                     options.tensor, options.replicas, options.pipeline, options.zero_stage, options.recompute,
                     options.precision.describe());
}

EngineOptions options_of(int tensor, int zero_stage) {
  return {.zero_stage = zero_stage,
          .accumulate = 2,
          .tensor = tensor,
          .accumulate_into = AccumulateInto::kShard,
          .gather = GatherMode::kCopy};
}

/// 10 rows are not divisible by 3 or 4, and one rank of 4 has no row of the first part.
TEST(SplitParameters, GiveTheResultsOfOneRank) {
  for (const int data_ranks : {1, 2}) {
    const Trained reference = train({data_ranks, options_of(1, 2)});
    for (const int tensor : {2, 3, 4}) {
      const Trained split = train({data_ranks, options_of(tensor, 2)});
      SCOPED_TRACE(text(options_of(tensor, 2)));
      expect_close(split.results, reference.results);
      for (const int zero_stage : {0, 1, 2, 3}) {
        for (const int recompute : {0, 3}) {
          EngineOptions options = options_of(tensor, zero_stage);
          options.recompute = recompute;
          const Trained own = train({data_ranks, options});
          EXPECT_TRUE(own.results == split.results) << text(options);
          EXPECT_TRUE(own.state == split.state) << text(options);
        }
      }
    }
  }
}

/// Memory beyond a shorter slice may contain anything, because the engine does not clear it before a backward.
TEST(SplitParameters, MayAssignGradients) {
  for (const int tensor : {1, 3}) {
    for (const int zero_stage : {0, 2, 3}) {
      EngineOptions options = options_of(tensor, zero_stage);
      const Trained adds = train({2, options}), assigns = train({.data_ranks = 2, .options = options, .assigns = true});
      EXPECT_TRUE(adds.results == assigns.results) << text(options);
    }
  }
}

TEST(SplitParameters, GiveTheSameBitsWithPipelines) {
  const Trained reference = train({2, options_of(2, 2)});
  for (const int zero_stage : {0, 1, 2, 3}) {
    EngineOptions options = options_of(2, zero_stage);
    options.pipeline = 2;
    options.pipeline_cut = {4, 4};
    const Trained own = train({2, options});
    EXPECT_TRUE(own.results == reference.results) << text(options);
    EXPECT_TRUE(own.state == reference.state) << text(options);
  }
}

TEST(SplitParameters, WorkWithReplicasAndAccumulationIntoFullGradients) {
  const Trained reference = train({2, options_of(1, 2)});
  for (const int replicas : {1, 2}) {
    for (const int zero_stage : {0, 1, 2, 3}) {
      EngineOptions options = options_of(2, zero_stage);
      options.replicas = replicas;
      options.accumulate_into = AccumulateInto::kFull;
      SCOPED_TRACE(text(options));
      expect_close(train({2, options}).results, reference.results);
    }
  }
}

TEST(SplitParameters, GiveTheSameBitsInTensorGroupsAcrossNodes) {
  const Trained reference = train({2, options_of(2, 2)});
  const test::ScopedRanksPerNode one(1);
  for (const int zero_stage : {0, 2, 3})
    EXPECT_TRUE(train({2, options_of(2, zero_stage)}).results == reference.results) << zero_stage;
}

TEST(SplitParameters, AdversarialSchedulingDoesNotChangeResults) {
  const Trained reference = train({2, options_of(2, 3)});
  for (uint64_t seed = 0; seed < 10; ++seed) {
    AdversarialScheduler adversary(
        seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
    const auto world = WorldOptions{.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }};
    const Trained own = train({2, options_of(2, 3), world});
    EXPECT_TRUE(own.results == reference.results) << "seed " << seed;
  }
}

TEST(SplitParameters, WorkInTheCheckingModeAndWithOffload) {
  const Trained reference = train({2, options_of(3, 3)});
  EngineOptions checks = options_of(3, 3), offloads = options_of(3, 3);
  checks.check = true;
  offloads.offload_state = offloads.offload_parameters = Offload::kHost;
  for (const EngineOptions& options : {checks, offloads}) {
    const Trained own = train({2, options});
    EXPECT_TRUE(own.results == reference.results);
    EXPECT_TRUE(own.state == reference.state);
  }
}

/// Returns results without those of the first steps.
TensorTrained after(TensorTrained results, int steps) {
  results.losses.erase(results.losses.begin(), results.losses.begin() + 2 * steps);
  results.norms.erase(results.norms.begin(), results.norms.begin() + steps);
  return results;
}

/// Runs on other meshes continue from the state after two steps. Their results are close to those of a run without an
/// interruption.
TEST(SplitParameters, StateMovesBetweenMeshes) {
  const Trained uninterrupted = train({.data_ranks = 2, .options = options_of(1, 2), .end_step = 5});
  for (const int saved : {1, 2, 3}) {
    const Trained first = train({.data_ranks = 2, .options = options_of(saved, 3), .end_step = 2});
    for (const int loaded : {1, 2, 4}) {
      for (const int zero_stage : {0, 3}) {
        TrainingRun run{.data_ranks = 2, .options = options_of(loaded, zero_stage), .initial = &first};
        run.first_step = run.end_step = 2;
        EXPECT_TRUE(train(run).state == first.state) << saved << " to " << loaded;
        run.end_step = 5;
        expect_close(train(run).results, after(uninterrupted.results, 2));
      }
    }
  }
}

std::string refusal(const EngineOptions& options, const ParameterOptions& parameter,
                    const std::vector<int64_t>& shape = {8, 6}) {
  std::string found;
  World::threads(
      2,
      [&](World& world) {
        float *value = nullptr, *gradient = nullptr;
        Engine engine(world, options);
        engine.add_unit("h").add("w", shape, &value, &gradient, parameter);
        const std::string own = test::usage_error_message([&] { (void)engine.plan(); });
        if (world.rank() == 0) found = own;
      },
      kHosts);
  return found;
}

TEST(SplitParameters, AreRefusedWhereTheyCannotWork) {
  EXPECT_EQ(refusal({.tensor = 2}, {.split = Split::rows({4, 5})}),
            "the split of h.w: the parts do not add up to the extent of dimension 0, which is 8");
  EXPECT_EQ(refusal({.tensor = 2}, {.split = Split::columns()}, {8}),
            "the split of h.w: Split::dimension is 1, but the parameter has 1 dimensions");
  EXPECT_EQ(refusal({.tensor = 2, .optimizer = Muon{}}, {.split = Split::rows()}),
            "Muon updates whole matrices, but h.w is split over a tensor group: set ParameterOptions::matrix to false, "
            "or use another optimizer");
  EXPECT_EQ(refusal({.tensor = 2, .optimizer = Muon{}}, {.matrix = false, .split = Split::rows()}),
            "no error was thrown");
  EXPECT_EQ(refusal({.tensor = 2, .optimizer = AdamW8bit{}}, {.split = Split::rows()}),
            "EngineOptions::optimizer is adamw8bit, which cannot update h.w, because it is split over a tensor group: "
            "use another optimizer");
  EXPECT_EQ(refusal({.tensor = 1, .optimizer = AdamW8bit{}}, {.split = Split::rows()}), "no error was thrown");
}

/// Runs one step of a unit with the parameter h.full and, with `split`, the split parameter h.split. `write` writes the
/// gradient of h.full, which has 8 elements.
StepReport step_with_gradient(World& world, bool split, const std::function<void(float*)>& write,
                              bool reproducible = false) {
  std::array<float*, 2> value{}, gradient{};
  Engine engine(world, {.tensor = 2, .reproducible = reproducible, .tell_skipped = false});
  Unit& unit = engine.add_unit("h");
  unit.add("full", {8}, &value[1], &gradient[1]);
  if (split) unit.add("split", {8}, &value[0], &gradient[0], {.split = Split::rows()});
  engine.materialize([](const ParameterSpec&, int64_t, std::span<float> values) { std::ranges::fill(values, 1.0f); });
  while (const auto work = engine.next()) {
    if (work->kind == UseKind::kBackward) write(gradient[1]);
  }
  return engine.step();
}

/// One rank of the tensor group has a gradient that is not finite, for a parameter that is not split. All ranks skip.
TEST(SplitParameters, ANotFiniteGradientOfOneRankSkipsTheStep) {
  for (const auto& [split, reproducible] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
    for (const int bad_rank : {0, 1}) {
      World::threads(
          2,
          [=](World& world) {
            const auto write = [&](float* gradient) {
              if (world.rank() == bad_rank) gradient[3] = std::nanf("");
            };
            const StepReport report = step_with_gradient(world, split, write, reproducible);
            EXPECT_TRUE(report.skipped) << bad_rank;
            EXPECT_EQ(report.first_not_finite, "h.full") << bad_rank;
          },
          kHosts);
    }
  }
}

/// Regression test: the gradients of a parameter with `partial_gradient` were checked after the sum over the tensor
/// group, so all ranks of the group reported their own gradients as not finite. The check runs from the second such
/// step on.
TEST(SplitParameters, OnlyTheRankWithANotFiniteGradientReportsIt) {
  for (const bool partial : {false, true}) {
    for (const int zero_stage : {0, 2, 3}) {
      World::threads(
          4,
          [=](World& world) {
            std::array<float*, 2> value{}, gradient{};
            Engine engine(world, {.zero_stage = zero_stage, .accumulate = 2, .tensor = 2, .tell_skipped = false});
            engine.add_unit("h")
                .add("w", {8}, &value[0], &gradient[0], {.partial_gradient = partial})
                .add("v", {8}, &value[1], &gradient[1], {.partial_gradient = !partial});
            engine.materialize(
                [](const ParameterSpec&, int64_t, std::span<float> values) { std::ranges::fill(values, 1.0f); });
            std::vector<bool> own;
            for (int step = 0; step < 3; ++step) {
              while (const auto work = engine.next()) {
                if (work->kind == UseKind::kBackward && work->micro_batch == 0 && world.rank() == 2)
                  gradient[0][3] = std::nanf("");
              }
              const StepReport report = engine.step();
              EXPECT_TRUE(report.skipped);
              own.push_back(report.own_not_finite);
            }
            const bool bad = world.rank() == 2;
            EXPECT_EQ(own, (std::vector<bool>{false, bad, bad})) << "ZeRO stage " << zero_stage;
          },
          kHosts);
    }
  }
}

/// If the clip factors of ranks differed, so would all copies after the step.
TEST(SplitParameters, RanksOfATensorGroupHaveOneNorm) {
  for (const bool split : {false, true}) {
    World::threads(
        2,
        [=](World& world) {
          const StepReport report = step_with_gradient(
              world, split, [&](float* gradient) { gradient[0] = 1 + 1e-6f * static_cast<float>(world.rank()); });
          EXPECT_EQ(report.gradient_norm, 1.0) << world.rank();
        },
        kHosts);
  }
}

/// Each rank computes a part of the gradient, but the parameter is not declared so. The copies then differ.
TEST(SplitParameters, CheckCopiesFindsAnUndeclaredPartialGradient) {
  World::threads(
      2,
      [](World& world) {
        float *value = nullptr, *gradient = nullptr;
        Engine engine(world, {.tensor = 2});
        engine.add_unit("h").add("w", {8}, &value, &gradient);
        engine.materialize(
            [](const ParameterSpec&, int64_t, std::span<float> values) { std::ranges::fill(values, 1.0f); });
        while (const auto work = engine.next()) {
          if (work->kind == UseKind::kBackward) gradient[world.rank()] = 1;
        }
        (void)engine.step();
        EXPECT_THROW(engine.check_copies(), FaultError);
      },
      kHosts);
}

/// The number of pieces does not depend on the number of rows.
TEST(SplitParameters, HaveFewPiecesInTheState) {
  for (const int zero_stage : {0, 3}) {
    World::threads(
        4,
        [&](World& world) {
          Engine engine(world, {.zero_stage = zero_stage, .tensor = 2});
          std::array<float*, 4> pointers{};
          engine.add_unit("u")
              .add("one", {500, 30}, &pointers[0], &pointers[1], {.split = Split::columns()})
              .add("two", {500, 30}, &pointers[2], &pointers[3], {.split = Split::columns({10, 20})});
          engine.materialize([](const ParameterSpec&, int64_t, std::span<float>) {});
          const std::size_t shards = zero_stage == 0 ? 2 : 1;
          for (const StateTensor& tensor : engine.state().tensors) {
            const std::size_t parts = tensor.path.find("two") == std::string::npos ? 1 : 2;
            EXPECT_LE(tensor.pieces.size(), 3 * parts * shards) << tensor.path;
          }
        },
        kHosts);
  }
}

}  // namespace
}  // namespace aliquot
