// Tests that environment variables of launchers determine the world. The tests do not use MPI.
#include <atomic>
#include <cstdlib>
#include <gtest/gtest.h>

#include "sharding/launcher.h"
#include "sharding/world.h"
#include "tests/support/mpi_leaks.h"

namespace aliquot {
namespace {

class LauncherTest : public testing::Test {
 protected:
  // Unsets the variables of launchers, because a launcher may have started this test.
  void SetUp() override {
    for (const char* variable :
         {"OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "SLURM_STEP_NUM_TASKS",
          "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_STEP_TASKS_PER_NODE",
          "SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
          "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
      unsetenv(variable);
    }
  }
  static void set(const char* variable, const char* value) { setenv(variable, value, 1); }
};

TEST_F(LauncherTest, WithoutALauncherThereIsOneProcess) { EXPECT_EQ(launched_process_count(), 1); }

TEST_F(LauncherTest, ReadsTheProcessCountOfMpirun) {
  set("OMPI_COMM_WORLD_SIZE", "4");
  EXPECT_EQ(launched_process_count(), 4);
}

TEST_F(LauncherTest, MpirunTakesPrecedenceOverSlurm) {
  set("SLURM_JOB_ID", "7");
  set("SLURM_STEP_NUM_TASKS", "2");  // the number of daemons that mpirun started with srun
  set("OMPI_COMM_WORLD_SIZE", "16");
  EXPECT_EQ(launched_process_count(), 16);
}

TEST_F(LauncherTest, ReadsTheProcessCountOfSrun) {
  set("SLURM_JOB_ID", "7");
  set("SLURM_STEP_ID", "0");
  set("SLURM_NTASKS", "8");
  EXPECT_EQ(launched_process_count(), 8);
  set("SLURM_STEP_NUM_TASKS", "3");
  EXPECT_EQ(launched_process_count(), 3);
}

TEST_F(LauncherTest, DistinguishesSrunFromMpirun) {
  EXPECT_EQ(started_by(), StartedBy::kItself);
  set("SLURM_JOB_ID", "7");
  set("SLURM_STEP_ID", "0");
  set("SLURM_STEP_NUM_TASKS", "3");
  EXPECT_EQ(started_by(), StartedBy::kSrun);
  set("PMI_SIZE", "3");
  EXPECT_EQ(started_by(), StartedBy::kSrun) << "srun --mpi=pmi2";
  EXPECT_EQ(launched_process_count(), 3);
  set("PMI_SIZE", "12");
  EXPECT_EQ(started_by(), StartedBy::kMpirun) << "mpiexec whose daemons were started by srun";
  set("OMPI_COMM_WORLD_SIZE", "16");
  EXPECT_EQ(started_by(), StartedBy::kMpirun);
}

TEST_F(LauncherTest, ReadsTheNumberOfProcessesOnTheNode) {
  EXPECT_EQ(launched_count_on_node(), 0);
  set("SLURM_STEP_NUM_TASKS", "7");
  set("SLURM_STEP_TASKS_PER_NODE", "2(x3),1");
  EXPECT_EQ(launched_count_on_node(), 0) << "the node is unknown";
  for (const auto& [node, count] : {std::pair{"0", 2}, {"2", 2}, {"3", 1}, {"4", 0}}) {
    set("SLURM_NODEID", node);
    EXPECT_EQ(launched_count_on_node(), count) << "node " << node;
  }
  set("SLURM_NODEID", "0");
  for (const char* list : {"", "many", "(x3)", "2(x", "2(x0)", "-2", ",2"}) {
    set("SLURM_STEP_TASKS_PER_NODE", list);
    EXPECT_EQ(launched_count_on_node(), 0) << list;
  }
  set("SLURM_STEP_TASKS_PER_NODE", "5");
  EXPECT_EQ(launched_count_on_node(), 5);
  set("OMPI_COMM_WORLD_SIZE", "8");
  EXPECT_EQ(launched_count_on_node(), 0) << "srun started the daemons of mpirun";
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "4");
  EXPECT_EQ(launched_count_on_node(), 4);
}

TEST_F(LauncherTest, ReadsTheRankOfTheProcess) {
  EXPECT_EQ(launched_rank(), 0);
  for (const char* variable :
       {"SLURM_PROCID", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK"}) {
    set(variable, "3");
    EXPECT_EQ(launched_rank(), 3) << variable;
    EXPECT_EQ(process_number(), 3) << variable;
    set(variable, "4");  // a later variable in this list takes precedence
  }
}

TEST_F(LauncherTest, BatchScriptIsOneProcess) {
  set("SLURM_JOB_ID", "7");
  set("SLURM_NTASKS", "8");
  EXPECT_EQ(launched_process_count(), 1);
  EXPECT_EQ(World::from_environment({.device = DeviceChoice::kHost}).rank_count(), 1);
}

TEST_F(LauncherTest, InvalidCountsAreIgnored) {
  set("OMPI_COMM_WORLD_SIZE", "many");
  set("SLURM_NTASKS", "-3");
  EXPECT_EQ(launched_process_count(), 1);
}

TEST_F(LauncherTest, ThreadsUnderALauncherThrow) {
  set("OMPI_COMM_WORLD_SIZE", "4");
  try {
    World::from_environment({.device = DeviceChoice::kHost, .kind = WorldChoice::kThreads});
    FAIL() << "World::from_environment() made a separate world in each of four processes";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("mpirun started 4 processes"), std::string::npos) << error.what();
  }
}

TEST_F(LauncherTest, ThreadsThrowIfTheLauncherSetsNoProcessCount) {
  for (const char* variable : {"PMIX_RANK", "PMI_RANK"}) {
    SetUp();
    set(variable, "0");
    try {
      World::run(2, [](World&) { FAIL() << "World::run() did not throw, so each process would train alone"; },
                 {.device = DeviceChoice::kHost, .kind = WorldChoice::kThreads});
      ADD_FAILURE() << variable << " was not recognised as a launcher's";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("started this process and possibly others"), std::string::npos)
          << error.what();
    }
  }
}

TEST_F(LauncherTest, ContradictoryOptionsThrow) {
  EXPECT_THROW(World::from_environment({.device = DeviceChoice::kHost, .kind = WorldChoice::kNccl}), UsageError);
  EXPECT_THROW(World::from_environment({.device = DeviceChoice::kCuda, .kind = WorldChoice::kMpi}), UsageError);
  EXPECT_THROW(World::threads(0, [](World&) {}), UsageError);
}

TEST_F(LauncherTest, WorldSupportsMoveAssignment) {
  World world = World::from_environment({.device = DeviceChoice::kHost});
  world = World::from_environment({.device = DeviceChoice::kHost});
  EXPECT_EQ(world.communicator().gather_objects("here").size(), 1u);
}

TEST_F(LauncherTest, WithoutALauncherTheWorldHasOneRank) {
  World world = World::from_environment({.device = DeviceChoice::kHost});
  EXPECT_EQ(world.rank_count(), 1);
  EXPECT_EQ(world.communicator().gather_objects("here"), std::vector<std::string>{"here"});
}

TEST_F(LauncherTest, RunStartsThreadsWithoutALauncher) {
  std::atomic<int> ranks{0};
  World::run(3, [&](World& world) { ranks += world.rank() + world.rank_count(); }, {.device = DeviceChoice::kHost});
  EXPECT_EQ(ranks, 3 + 9);
}

}  // namespace
}  // namespace aliquot
