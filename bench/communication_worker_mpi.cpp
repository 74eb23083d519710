// Usage: mpirun -n RANKS communication_worker OPERATION RANKS ROUNDS. Prints one line per round, with the name of each
// variant and its time in microseconds. Each round runs every variant once:
//   threads: thread ranks in the first process, while the other processes sleep
//   mpi: all processes, with Aliquot's communicator
//   plain: threads in the first process, without a communicator
//   open_mpi: all processes, with Open MPI's collective
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/communication_team.h"
#include "sharding/mpi/handles_mpi.h"

namespace aliquot::bench {
namespace {

// Waiting ranks sleep, so that the other ranks can use the cores.
void sleeping_barrier() {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(MPI_COMM_WORLD, &request), "MPI_Ibarrier");
  for (int done = 0; done == 0;) {
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

double run_collectively(World& world, const std::function<void()>& work) {
  sleeping_barrier();
  check_mpi(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
  const Span own = time(work);
  sleeping_barrier();  // ranks that have finished sleep until the others finish
  std::vector<Span> all;
  for (const auto& span : world.communicator().gather_objects({reinterpret_cast<const char*>(&own), sizeof own})) {
    all.push_back(*reinterpret_cast<const Span*>(span.data()));
  }
  return seconds_of(all);
}

// Returns a function that runs Open MPI's collective on the same bytes. The function is empty if Open MPI has no
// collective that is equivalent to the operation.
std::function<void()> open_mpi(const std::string& name, int rank_count) {
  const auto whole = std::make_shared<std::vector<float>>(kBufferBytes / 4, 1.0f);
  const auto part = std::make_shared<std::vector<float>>(kBufferBytes / 4 / rank_count, 1.0f);
  const int count = static_cast<int>(part->size());
  if (name == "reduce_scatter") {
    return [=] {
      check_mpi(MPI_Reduce_scatter_block(whole->data(), part->data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
                "MPI_Reduce_scatter_block");
    };
  }
  if (name == "all_gather") {
    return [=] {
      check_mpi(MPI_Allgather(part->data(), count, MPI_FLOAT, whole->data(), count, MPI_FLOAT, MPI_COMM_WORLD),
                "MPI_Allgather");
    };
  }
  return {};
}

void run(const std::string& name, int rank_count, int round_count) {
  World world = World::from_environment({.device = DeviceChoice::kHost, .kind = WorldChoice::kMpi});
  const bool first = world.rank() == 0;
  const auto ours = operation(name)(world);
  const auto theirs = open_mpi(name, rank_count);
  std::unique_ptr<RankTeam> threads, reference;
  if (first) threads = std::make_unique<RankTeam>(rank_count, operation(name));
  if (first && plain(name)) reference = std::make_unique<RankTeam>(rank_count, plain(name));
  for (int round = -1; round < round_count; ++round) {
    std::string line;
    const auto append = [&](const char* what, double seconds) {
      line += std::string(what) + " " + std::to_string(seconds * 1e6) + " ";
    };
    sleeping_barrier();
    if (threads) append("threads", threads->run());
    append("mpi", run_collectively(world, ours));
    if (reference) append("plain", reference->run());
    if (theirs) append("open_mpi", run_collectively(world, theirs));
    if (first && round >= 0) std::printf("%s\n", line.c_str());  // round -1 is warm-up: touches pages and loads code
  }
  sleeping_barrier();
}

}  // namespace
}  // namespace aliquot::bench

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: communication_worker OPERATION RANKS ROUNDS\n");
    return 1;
  }
  try {
    aliquot::bench::run(argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
    return 0;
  } catch (const aliquot::Error& error) {
    std::fprintf(stderr, "communication_worker: %s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
