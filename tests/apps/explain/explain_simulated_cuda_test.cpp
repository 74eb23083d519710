// Tests what aliquot doctor --explain reports about ranks on simulated GPUs when one rank never arrives.
#include <chrono>
#include <filesystem>
#include <gtest/gtest.h>
#include <thread>

#include "apps/explain/explain.h"
#include "sharding/world.h"

namespace aliquot {
namespace {

class ExplainGpus : public testing::TestWithParam<WorldChoice> {};

void barrier(World& world, Label label) {
  const auto stream = world.device().make_stream(Lane::kReduce);
  world.communicator().barrier(*stream, label);
  stream->synchronize();
}

TEST_P(ExplainGpus, NamesTheRankThatNeverArrived) {
  const std::filesystem::path records = testing::TempDir() + "aliquot_gpu_flights";
  std::filesystem::remove_all(records);
  std::filesystem::create_directory(records);
  const WorldOptions options{
      .device = DeviceChoice::kCuda, .kind = GetParam(), .timeout_seconds = 0.7, .flight_directory = records.string()};
  const auto body = [](World& world) {
    barrier(world, {"h.3", 117});
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    if (world.rank() == 1) throw FaultError("too late");
    barrier(world, {"h.7", 118});
  };
  EXPECT_THROW(World::threads(2, body, options), FaultError);
  const std::string text = explain(read_flights({records}).records);
  EXPECT_NE(
      text.find("Rank 1 never reached collective #2 of the reduce lane, barrier (h.7, step 118), which rank 0 had "
                "issued.\n  rank 1 had last reached #1, barrier (h.3, step 117).\n"),
      std::string::npos)
      << text;
  std::filesystem::remove_all(records);
}

INSTANTIATE_TEST_SUITE_P(Worlds, ExplainGpus, testing::Values(WorldChoice::kThreads, WorldChoice::kNccl),
                         [](const auto& test) { return test.param == WorldChoice::kNccl ? "Nccl" : "Threads"; });

}  // namespace
}  // namespace aliquot
