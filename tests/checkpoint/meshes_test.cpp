// Trains a model with split parameters on every mesh of 8 ranks, and continues each run on the other meshes.
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>

#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "tests/checkpoint/support.h"
#include "tests/engine/split_blocks.h"
#include "tests/support/all_cases.h"

namespace aliquot {
namespace {

using namespace testing_model;

constexpr int kRanks = 8;

/// All products of four numbers that give 8.
std::vector<Mesh> meshes() {
  std::vector<Mesh> all;
  for (const int pipeline : {1, 2, 4, 8}) {
    for (int replica = 1; replica * pipeline <= kRanks; replica *= 2) {
      for (int shard = 1; shard * replica * pipeline <= kRanks; shard *= 2)
        all.push_back({pipeline, replica, shard, kRanks / (pipeline * replica * shard)});
    }
  }
  return all;
}

/// One rank has the mesh {1, 1, 1, 1}.
EngineOptions options_of(const Mesh& mesh, int zero_stage) {
  EngineOptions options{.zero_stage = zero_stage,
                        .replicas = mesh.replica,
                        .accumulate = kRanks / (mesh.replica * mesh.shard),
                        .tensor = mesh.tensor,
                        .pipeline = mesh.pipeline};
  if (mesh.pipeline > 1)
    options.pipeline_cut.assign(static_cast<std::size_t>(mesh.pipeline), SplitBlocks::kBlocks / mesh.pipeline);
  return options;
}

std::string text(const Mesh& mesh, int zero_stage) {
  return fmt::format("{} x {} x {} x {}, ZeRO stage {}", mesh.pipeline, mesh.replica, mesh.shard, mesh.tensor,
                     zero_stage);
}

struct TrainingRun {
  Mesh mesh;
  int zero_stage = 3;
  std::filesystem::path from = {}, to = {};  // checkpoints to load from and to save to; empty: none
  int first_step = 0, save_before = 0, end_step = 4;
};

/// Returns the loss of each step, over the global batch of 8 micro-batches.
std::vector<double> train_rank(World& world, const TrainingRun& run) {
  Engine engine(world, options_of(run.mesh, run.zero_stage));
  SplitBlocks blocks(engine, world.rank(), run.mesh.tensor);
  const int data_ranks = run.mesh.replica * run.mesh.shard;
  const int data_rank = world.rank() / run.mesh.tensor % data_ranks;
  if (!run.from.empty()) {
    State state = engine.state();
    load(state, world.communicator(), run.from);
    engine.adopt(state);
  }
  std::vector<double> losses;
  for (int step = run.first_step; step < run.end_step; ++step) {
    if (step == run.save_before && !run.to.empty()) {
      State state = engine.state();
      state.step = step;
      save(state, world.communicator(), run.to);
    }
    while (const auto work = engine.next())
      blocks.run(*work, step + 0.1 * (work->micro_batch * data_ranks + data_rank));
    engine.compute_stream().synchronize();
    std::array loss{blocks.take_loss_sum()};
    engine.sum_losses(loss);
    losses.push_back(loss[0]);
    (void)engine.step();
  }
  expect_planned_peak(world, engine);
  engine.check_copies();
  return losses;
}

std::vector<double> train(const TrainingRun& run) {
  std::vector<double> losses;
  World::threads(
      run.mesh.rank_count(),
      [&](World& world) {
        const std::vector<double> own = train_rank(world, run);
        if (world.rank() == 0) losses = own;
      },
      kHosts);
  return losses;
}

void expect_close(const std::vector<double>& losses, const std::vector<double>& reference) {
  ASSERT_EQ(losses.size(), reference.size());
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], reference[i], 1e-6 * reference[i]);
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Meshes, OfEightRanksGiveTheLossesOfOneRank) {
  ASSERT_EQ(meshes().size(), 20U);
  const std::vector<double> reference = train({.mesh = {}});
  test::CaseSelection selection(3);
  for (const Mesh& mesh : meshes()) {
    for (const int zero_stage : {0, 1, 2, 3}) {
      if (!selection.next()) continue;
      SCOPED_TRACE(text(mesh, zero_stage));
      expect_close(train({.mesh = mesh, .zero_stage = zero_stage}), reference);
    }
  }
}

/// Each mesh loads a checkpoint, and saves it again with the same bytes. So a run that continues from the checkpoint of
/// one mesh also continues from those of all other meshes.
TEST(Meshes, ContinueFromTheCheckpointsOfOtherMeshes) {
  const std::vector<double> uninterrupted = train({.mesh = {}});
  const std::vector<double> rest(uninterrupted.begin() + 2, uninterrupted.end());
  test::CaseSelection selection(3);
  for (const Mesh& first : {Mesh{}, Mesh{2, 1, 2, 2}}) {
    const test::TemporaryDirectory saved;
    train({.mesh = first, .to = saved.path(), .save_before = 2});
    const std::filesystem::path checkpoint = saved.path() / checkpoint_name(2);
    const std::string bytes = contents(checkpoint / "state.h5");
    ASSERT_FALSE(bytes.empty());
    for (const Mesh& mesh : meshes()) {
      for (const int zero_stage : {0, 3}) {
        if (!selection.next()) continue;
        SCOPED_TRACE(text(mesh, zero_stage));
        const test::TemporaryDirectory again;
        const std::vector<double> losses = train({.mesh = mesh,
                                                  .zero_stage = zero_stage,
                                                  .from = checkpoint,
                                                  .to = again.path(),
                                                  .first_step = 2,
                                                  .save_before = 2});
        expect_close(losses, rest);
        EXPECT_TRUE(contents(again.path() / checkpoint_name(2) / "state.h5") == bytes);
      }
    }
  }
}

}  // namespace
}  // namespace aliquot
