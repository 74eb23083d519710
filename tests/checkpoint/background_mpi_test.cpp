// Tests background saves of MPI processes while their main threads run collectives.
#include <filesystem>
#include <gtest/gtest.h>

#include "checkpoint/background_saver.h"
#include "sharding/world.h"
#include "tests/checkpoint/support.h"
#include "tests/support/mpi_leaks.h"

namespace aliquot {
namespace {

TEST(BackgroundMpi, WritesTheSameFileAsABlockingSave) {
  WorldOptions options;
  options.device = DeviceChoice::kHost;
  options.threads_per_rank = 1;
  options.timeout_seconds = 60;
  World world = World::from_environment(options);
  Communicator& ranks = world.communicator();
  std::unique_ptr<test::TemporaryDirectory> own;
  if (ranks.rank() == 0) own = std::make_unique<test::TemporaryDirectory>();
  const std::filesystem::path directory = ranks.gather_objects(own ? own->path().string() : "")[0];
  test::Shard shard(test::edge_case_tensors(), ranks.rank_count(), ranks.rank(), test::Partition::kRandom, 4);
  BackgroundSaver saver(ranks, snapshot_bytes(shard.state()), &world.device().ledger());
  for (int64_t step = 1; step <= 3; ++step) {
    shard.fill(static_cast<uint64_t>(step));
    shard.state().step = step;
    save(shard.state(), ranks, directory / "blocking");
    saver.start(shard.state(), directory / "background", {});
    shard.poison();
    int exchanges = 0;
    for (bool all_done = false; !all_done; ++exchanges) {
      const auto done = ranks.gather_objects(saver.finished() ? "1" : "0");
      all_done = std::all_of(done.begin(), done.end(), [](const std::string& each) { return each == "1"; });
    }
    EXPECT_GT(exchanges, 1);
    saver.collect();
    const std::string name = checkpoint_name(step) + "/state.h5";
    EXPECT_TRUE(test::read_file(directory / "blocking" / name) == test::read_file(directory / "background" / name));
  }
  ranks.gather_objects("compared");
}

}  // namespace
}  // namespace aliquot
