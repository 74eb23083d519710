// Runs the conformance tests with NCCL between processes that this program forks. All tests of one world size use the
// same world. If there are fewer GPUs than ranks, each process reports a different host to NCCL. NCCL then communicates
// through sockets, and several ranks may share a GPU.
// ALIQUOT_NCCL_RANKS="1 2 4" sets the world sizes. The default is "1 2 3 4 8". Without a GPU it is "1 2", and all tests
// are skipped.
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
                  .timeout_seconds = kTimeoutSeconds};
  auto communicator = make_nccl_communicator(*device, std::move(setup));
  return World(std::move(device), std::move(communicator));
}

/// Prints only the failures of a rank. All ranks use it except rank 0, which prints the complete report.
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

/// Runs all tests on one rank. All ranks run the tests in the same order.
int run_rank(ProcessesBootstrapStore& store, int rank, int argc, char** argv) {
  if (rank_count > gpu_count) set_distinct_host_id(rank);
  if (rank != 0) unsetenv("GTEST_OUTPUT");  // only rank 0 writes the report file
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

/// Counts GPUs in a child process, because CUDA does not work in a process that was forked after CUDA was used.
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
  if (!world) GTEST_SKIP() << "no usable GPU";
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
    std::printf("NCCL world of %d ranks on %d GPUs\n", rank_count, gpu_count);
    std::fflush(nullptr);
    failures += run_ranks(argc, argv);
  }
  return failures == 0 ? 0 : 1;
}
