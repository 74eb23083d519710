// Ranks over NCCL: processes that this program forks, one world for all tests. With fewer GPUs than ranks each process
// calls itself another host, which NCCL believes: then it moves bytes over sockets, and several ranks may share a GPU.
//   ALIQUOT_NCCL_RANKS="1 2 4" says which worlds, else "1 2 3 4 8", or "1 2" where all is skipped.
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include "sharding/nccl/communicator_nccl.h"
#include "tests/sharding/conformance/conformance.h"
#include "tests/support/bootstrap_processes.h"

namespace aliquot::conformance {
namespace {

constexpr double kTimeoutSeconds = 60;

int rank_count = 1;
int gpu_count = 0;
std::optional<World> world;

World make_world(ProcessesBootstrapStore& store, int rank) {
  auto device = make_cuda_device(rank % gpu_count);
  Topology topology = Topology::one_host(rank_count);
  for (int r = 0; r < rank_count; ++r) topology.gpu_of_rank[r] = r % gpu_count;
  NcclSetup setup{.bootstrap = store.bootstrap(rank),
                  .topology = topology,
                  .make_node_memory = make_memfd_node_memory,
                  .options = {.timeout_seconds = kTimeoutSeconds}};
  auto communicator = make_nccl_communicator(*device, std::move(setup));
  return World(std::move(device), std::move(communicator));
}

/// What the other ranks have to say, beside the first one's report.
class FailuresOnly : public testing::EmptyTestEventListener {
 public:
  explicit FailuresOnly(int rank) : rank_(rank) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d, %s:%d: %s\n", rank_, result.file_name() == nullptr ? "" : result.file_name(),
                 result.line_number(), result.message());
  }

 private:
  int rank_;
};

void set_distinct_host_id(int rank) {
  setenv("NCCL_HOSTID", ("rank" + std::to_string(rank)).c_str(), 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  setenv("NCCL_IB_DISABLE", "1", 0);
}

/// One rank: all tests, in the same order as the others run them.
int run_rank(ProcessesBootstrapStore& store, int rank, int argc, char** argv) {
  if (rank_count > gpu_count) set_distinct_host_id(rank);
  if (rank != 0) unsetenv("GTEST_OUTPUT");  // one report
  testing::InitGoogleTest(&argc, argv);
  if (rank != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly(rank));
  }
  if (gpu_count > 0) world.emplace(make_world(store, rank));
  const int result = RUN_ALL_TESTS();
  world.reset();
  return result;
}

/// In a process of its own, for a process that has asked CUDA cannot be forked any more.
int count_gpus() {
  const pid_t child = fork();
  if (child == 0) _exit(cuda_device_count());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

int run_ranks(int argc, char** argv) {
  ProcessesBootstrapStore store(rank_count, kTimeoutSeconds);
  std::vector<pid_t> ranks;
  for (int r = 0; r < rank_count; ++r) {
    const pid_t child = fork();
    if (child != 0) {
      ranks.push_back(child);
      continue;
    }
    int result = 1;
    try {
      result = run_rank(store, r, argc, argv);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", r, error.what());
    }
    std::fflush(nullptr);
    _exit(result);
  }
  int failures = 0;
  for (int left = rank_count; left > 0; --left) {
    int status = 0;
    wait(&status);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    ++failures;
    store.abort("a rank of the test failed");
  }
  return failures;
}

}  // namespace

std::vector<int> world_sizes() { return {rank_count}; }
void run_world(int, const std::function<void(World&)>& body) {
  if (!world) GTEST_SKIP() << "there is no GPU here";
  body(*world);
}
bool sums_are_exact() { return false; }

}  // namespace aliquot::conformance

int main(int argc, char** argv) {
  using namespace aliquot::conformance;
  gpu_count = count_gpus();
  const char* wanted = std::getenv("ALIQUOT_NCCL_RANKS");
  std::istringstream sizes(wanted != nullptr ? wanted : gpu_count > 0 ? "1 2 3 4 8" : "1 2");
  int failures = 0;
  while (sizes >> rank_count) {
    std::printf("a world of %d over NCCL, %d GPUs\n", rank_count, gpu_count);
    std::fflush(nullptr);
    failures += run_ranks(argc, argv);
  }
  return failures == 0 ? 0 : 1;
}
