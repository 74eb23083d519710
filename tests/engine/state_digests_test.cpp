// Tests that EngineOptions::check_state finds every changed bit of the state in the step that reads it, and changes no
// result. Compiled for several worlds: see tested_world.h.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/system/error.h"
#include "tests/engine/tested_world.h"
#include "tests/support/all_cases.h"

namespace aliquot {
namespace {

using namespace testing_model;

EngineOptions with_digests(EngineOptions options) {
  options.check_state = true;
  return options;
}

constexpr const char* kFirstTensor = "scale.weight";

std::string offload_folder() { return std::filesystem::temp_directory_path(); }

/// Options with different state: types, masters, optimizers, offload and orders of updates.
std::vector<EngineOptions> all_options(int stage) {
  using enum Offload;
  std::vector<EngineOptions> all = {
      {.zero_stage = stage},
      {.zero_stage = stage, .precision = {.compute = DType::kBFloat16}, .accumulate = 2},
      {.zero_stage = stage, .precision = {.compute = DType::kBFloat16, .master = MasterForm::kFp32}},
      {.zero_stage = stage, .precision = {.compute = DType::kFloat16}},
      {.zero_stage = stage, .gather = GatherMode::kCopy, .update_in_backward = true, .clip = 0},
      {.zero_stage = stage, .optimizer = AdamW8bit{}},
      {.zero_stage = stage, .optimizer = AdamW{}, .moments = DType::kBFloat16},
      {.zero_stage = stage, .optimizer = Sgd{.momentum = 0}},
      {.zero_stage = stage, .optimizer = Lion{}},
      {.zero_stage = stage, .precision = {.compute = DType::kBFloat16}, .optimizer = Muon{}},
      {.zero_stage = stage, .offload_state = kHost},
      {.zero_stage = stage,
       .precision = {.compute = DType::kBFloat16},
       .offload_state = kDisk,
       .offload_state_to = offload_folder()}};
  if (stage == 3)
    all.push_back({.zero_stage = stage,
                   .precision = {.compute = DType::kBFloat16},
                   .offload_state = kDisk,
                   .offload_state_to = offload_folder(),
                   .offload_parameters = kDisk,
                   .offload_parameters_to = offload_folder()});
  if (stage < 3) {
    for (EngineOptions& options : all) options.gather = GatherMode::kAuto;
  }
  std::erase_if(all, [](const EngineOptions& options) { return !is_supported(options); });
  return all;
}

std::string describe(int ranks, const EngineOptions& options) {
  return fmt::format("{} ranks, ZeRO stage {}, {}, {}, state to {}, parameters to {}", ranks, options.zero_stage,
                     options.precision.describe(), name(options.optimizer), static_cast<int>(options.offload_state),
                     static_cast<int>(options.offload_parameters));
}

TEST(StateDigests, DoNotChangeResults) {
  test::CaseSelection selection(kTestsHosts ? 1 : 13);
  for (const int ranks : {1, 3, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const EngineOptions& options : all_options(stage)) {
        if (!selection.next()) continue;
        const Outcome plain = train_on(ranks, {.options = options}, kTestedWorld);
        EXPECT_TRUE(train_on(ranks, {.options = with_digests(options)}, kTestedWorld) == plain)
            << describe(ranks, options);
      }
    }
  }
}

TEST(StateDigests, DoNotChangeResultsOfReplicasAndFrozenLayers) {
  test::CaseSelection selection(kTestsHosts ? 1 : 13);
  for (const int stage : {0, 1, 2, 3}) {
    const EngineOptions options = {.zero_stage = stage, .replicas = 2, .accumulate = 2};
    EXPECT_TRUE(train_on(4, {.options = with_digests(options)}, kTestedWorld) ==
                train_on(4, {.options = options}, kTestedWorld));
    for (EngineOptions frozen : all_options(stage)) {
      if (!selection.next()) continue;
      frozen.accumulate = 1;
      EXPECT_EQ(freeze_and_evaluate(3, {.options = with_digests(frozen)}, kTestedWorld),
                freeze_and_evaluate(3, {.options = frozen}, kTestedWorld))
          << describe(3, frozen);
    }
  }
}

TEST(StateDigests, MemoryEqualsThePlan) {
  for (const int stage : {0, 1, 2, 3}) {
    for (EngineOptions options : all_options(stage)) {
      options.accumulate = 2;
      World::threads(
          3, [&](World& world) { expect_planned_memory(world, {.options = with_digests(options)}); }, kTestedWorld);
    }
  }
}

/// Trains one step. Returns after the step has ended on all ranks.
void train_step(Engine& engine, SmallModel& model, int64_t step, int rank) {
  for (int m = 0; m < engine.plan().policy.micro_batch_count; ++m) train_micro_batch(engine, model, step, m, rank);
  static_cast<void>(engine.step());
  engine.read(kFirstTensor);
}

/// A piece of a tensor of the state.
struct Piece {
  std::string path;  // of the tensor
  std::size_t tensor, piece;
};

/// Returns the pieces that each rank holds.
std::vector<std::vector<Piece>> pieces_of(int ranks, const EngineOptions& options) {
  std::vector<std::vector<Piece>> all(static_cast<std::size_t>(ranks));
  const auto body = [&](World& world) {
    SmallModel model(options.precision);
    Engine engine(world, options);
    declare(engine, model);
    const State state = engine.state();
    for (std::size_t tensor = 0; tensor < state.tensors.size(); ++tensor) {
      for (std::size_t piece = 0; piece < state.tensors[tensor].pieces.size(); ++piece)
        all[static_cast<std::size_t>(world.rank())].push_back({state.tensors[tensor].path, tensor, piece});
    }
  };
  World::threads(ranks, body, kTestedWorld);
  return all;
}

/// Trains three steps. After step 2, flips a bit of one piece of the state of `rank`, in the first or the last value of
/// the piece. Returns the message of the FaultError, or "" if none is thrown. Calls Engine::state() only before the
/// first step, because the engine does not compare digests in the step after a call.
std::string train_with_flip(int ranks, const EngineOptions& options, int rank, const Piece& flipped, bool last_value) {
  const auto body = [&](World& world) {
    SmallModel model(options.precision);
    Engine engine(world, options);
    declare(engine, model);
    const State state = engine.state();
    for (int step = 1; step <= 3; ++step) {
      train_step(engine, model, step, world.rank());
      if (step != 2) continue;
      if (world.rank() == rank) {
        const StateTensor& tensor = state.tensors[flipped.tensor];
        const StatePiece& piece = tensor.pieces[flipped.piece];
        const bool of_parameters = tensor.path.starts_with("parameters/");
        const int64_t bytes = element_bytes(of_parameters ? options.precision.compute : tensor.dtype);
        piece.bytes[last_value ? (piece.count - 1) * bytes : 0] ^= std::byte{16};
      }
      // Step 3 of other ranks reads the piece, so it must not begin before the bit has been flipped.
      world.communicator().gather_objects("flipped");
    }
  };
  try {
    World::threads(ranks, body, kTestedWorld);
  } catch (const FaultError& error) {
    return error.what();
  }
  return "";
}

/// A tensor is named UNIT.NAME.
std::string unit_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

/// Flips a bit of each piece of each tensor on each rank, or of a selection of pieces. Returns the number of pieces.
int expect_every_flip_is_found(int ranks, const EngineOptions& options) {
  test::CaseSelection selection(kTestsHosts ? 1 : 11);
  int pieces = 0;
  const auto all = pieces_of(ranks, options);
  for (int rank = 0; rank < ranks; ++rank) {
    for (const Piece& piece : all[static_cast<std::size_t>(rank)]) {
      ++pieces;
      if (!selection.next()) continue;
      const bool last_value = (piece.tensor + piece.piece) % 2 == 1;
      const std::string found = train_with_flip(ranks, options, rank, piece, last_value);
      const std::string name = piece.path.substr(piece.path.find('/') + 1), owner = name.substr(0, name.rfind('/'));
      const bool of_parameters = piece.path.starts_with("parameters/");
      const std::string& parameter = of_parameters ? name : owner;
      const std::string what =
          fmt::format("silent data corruption, found in step 3: the {} of unit {} on rank {} (node 0, ",
                      of_parameters ? "parameters" : "optimizer state", unit_of(parameter), rank);
      EXPECT_NE(found.find(what), std::string::npos) << describe(ranks, options) << ", " << piece.path << ": " << found;
      EXPECT_NE(found.find(" of " + parameter + ","), std::string::npos) << piece.path << ": " << found;
    }
  }
  return pieces;
}

TEST(StateDigests, FindEveryFlippedBitInTheNextStep) {
  for (const int stage : {0, 1, 2, 3}) {
    // 7 tensors with 2 optimizer states; below ZeRO stage 3, 4 ranks hold all parameters.
    EXPECT_GT(expect_every_flip_is_found(4, {.zero_stage = stage, .check_state = true}), stage == 3 ? 20 : 30);
  }
}

/// No call waits for the GPU between steps. The next step finds the flip before its update.
TEST(StateDigests, FindAFlippedBitWithoutACallBetweenSteps) {
  for (const int stage : {0, 1, 2, 3}) {
    std::atomic<int> thrown_in = 0;
    std::string reason;
    try {
      World::threads(
          2,
          [&](World& world) {
            SmallModel model;
            Engine engine(world, {.zero_stage = stage, .check_state = true});
            declare(engine, model);
            const State state = engine.state();
            const auto own = std::ranges::find_if(state.tensors, [](const StateTensor& each) {
              return !each.path.starts_with("parameters/") && !each.pieces.empty();
            });
            std::byte* const bytes = own->pieces.front().bytes;
            for (int step = 1; step <= 5; ++step) {
              if (world.rank() == 1) thrown_in = step;
              train_micro_batch(engine, model, step, 0, world.rank());
              static_cast<void>(engine.step());
              if (step == 2 && world.rank() == 1) engine.compute_stream().run([bytes] { *bytes ^= std::byte{16}; });
            }
          },
          kTestedWorld);
    } catch (const FaultError& error) {
      reason = error.what();
    }
    EXPECT_NE(reason.find("found in step 3: the optimizer state of unit"), std::string::npos) << reason;
    EXPECT_LE(thrown_in, 4) << "ZeRO stage " << stage;
  }
}

TEST(StateDigests, FindFlippedBitsOfEveryFormat) {
  for (const int stage : {1, 3}) {
    for (const EngineOptions& options : all_options(stage)) {
      if (options.offload_state == Offload::kDisk) continue;  // a test cannot change the bytes in an unnamed file
      EXPECT_GT(expect_every_flip_is_found(2, with_digests(options)), 7);
    }
  }
}

TEST(StateDigests, FindFlippedBitsOfReplicas) {
  EXPECT_GT(expect_every_flip_is_found(4, {.zero_stage = 3, .replicas = 2, .check_state = true}), 20);
}

/// Trains with a layer that is frozen from the start, and flips a bit of it.
TEST(StateDigests, FindFlippedBitsOfFrozenParameters) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const Offload offload : {Offload::kNone, Offload::kHost}) {
      if (offload != Offload::kNone && stage < 3) continue;
      std::string reason;
      try {
        World::threads(
            1,
            [&](World& world) {
              SmallModel model;
              Engine engine(world, {.zero_stage = stage,
                                    .gather = GatherMode::kCopy,
                                    .offload_parameters = offload,
                                    .check_state = true});
              declare(engine, model);
              engine.set_trainable("layer.1", false);
              for (int i = 3; i <= 4; ++i) model.frozen[i] = true;
              const State state = engine.state();
              const auto frozen = std::ranges::find(state.tensors, "parameters/layer.1.weight", &StateTensor::path);
              for (int step = 1; step <= 3; ++step) {
                train_step(engine, model, step, 0);
                if (step == 2) frozen->pieces.front().bytes[1030] ^= std::byte{1};
              }
            },
            kTestedWorld);
      } catch (const FaultError& error) {
        reason = error.what();
      }
      EXPECT_NE(reason.find("found in step 3: the parameters of unit layer.1 on rank 0"), std::string::npos) << reason;
      EXPECT_NE(reason.find("block 1 of its flat buffer, elements 256 to 511 of layer.1.weight,"), std::string::npos)
          << reason;
    }
  }
}

TEST(StateDigests, AreComparedBetweenSteps) {
  for (const bool by_state : {false, true}) {
    std::string reason;
    try {
      World::threads(
          1,
          [&](World& world) {
            SmallModel model;
            Engine engine(world, {.check_state = true});
            declare(engine, model);
            const State state = engine.state();
            train_step(engine, model, 1, 0);
            engine.check_copies();
            state.tensors.back().pieces.front().bytes[0] ^= std::byte{1};
            by_state ? static_cast<void>(engine.state()) : engine.check_copies();
          },
          kTestedWorld);
    } catch (const FaultError& error) {
      reason = error.what();
    }
    EXPECT_NE(reason.find("silent data corruption, found in step 1: the optimizer state of unit"), std::string::npos)
        << reason;
  }
}

/// A caller may change the state that state() returns, for example by load().
TEST(StateDigests, AcceptChangesOfAState) {
  World::threads(
      2,
      [](World& world) {
        SmallModel model;
        Engine engine(world, {.zero_stage = 0, .check_state = true});
        declare(engine, model);
        for (int step = 1; step <= 3; ++step) {
          train_step(engine, model, step, world.rank());
          for (const StateTensor& tensor : engine.state().tensors) tensor.pieces.front().bytes[0] ^= std::byte{1};
        }
      },
      kTestedWorld);
}

/// On GPUs, the time of digests is not measured.
TEST(StateDigests, HaveACost) {
  World::threads(
      1,
      [](World& world) {
        SmallModel model;
        for (const bool check_state : {false, true}) {
          Engine engine(world, {.check_state = check_state});
          declare(engine, model);
          train_micro_batch(engine, model, 1, 0, 0);
          static_cast<void>(engine.step());
          engine.read(kFirstTensor);
          train_micro_batch(engine, model, 2, 0, 0);
          EXPECT_EQ(engine.step().state_check_seconds > 0, check_state && kTestsHosts);
        }
      },
      kTestedWorld);
}

}  // namespace
}  // namespace aliquot
