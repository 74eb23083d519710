// A program that initializes MPI itself and then creates worlds: own_mpi HOW, under mpirun. HOW is a key of kCases.
#include <algorithm>
#include <aliquot/mpi.h>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <functional>
#include <map>
#include <sched.h>
#include <set>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "kernels/device/host_stream.h"
#include "kernels/device/stream.h"
#include "kernels/system/thread_pool.h"
#include "sharding/comm/collective_purpose.h"
#include "sharding/cores.h"
#include "sharding/flight/flight_recorder.h"
#include "sharding/world.h"
#include "tests/support/mpi_leaks.h"

using aliquot::World;
using aliquot::WorldOptions;

namespace {

const WorldOptions kOptions{.device = aliquot::DeviceChoice::kHost, .timeout_seconds = 20};

struct Case {
  int thread_level;
  std::function<void(int rank)> run;
};

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

void require(bool holds, const char* what) {
  if (!holds) throw aliquot::FaultError(fmt::format("rank {}: expected {}", world_rank(), what));
}

/// A communicator that the program frees, as a user's program does.
class OwnComm {
 public:
  OwnComm(int color, int key) { MPI_Comm_split(MPI_COMM_WORLD, color, key, &comm_); }
  OwnComm(const OwnComm&) = delete;
  OwnComm& operator=(const OwnComm&) = delete;
  ~OwnComm() { free(); }
  MPI_Comm get() const { return comm_; }
  void free() {
    if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// Runs collectives in a world, and checks that its ranks are those of a communicator with `count` ranks.
void use_world(World& world, int rank, int count) {
  require(world.rank() == rank && world.rank_count() == count, "the ranks of the communicator");
  for (int round = 1; round <= 100; ++round) {
    std::array<double, 2> values{1.0 + rank, 0.5 * round};
    world.sum(values);
    require(values[0] == count * (count + 1) / 2.0 && values[1] == 0.5 * round * count, "the sum over the group");
  }
  require(static_cast<int>(world.communicator().gather_objects("here").size()) == count, "one object per rank");
}

/// The file with which the other ranks tell the last rank, outside of MPI, that they have finished.
std::string done_file() { return fmt::format("/tmp/aliquot-own-mpi-{}", getppid()); }

/// All ranks but the last form a world. Meanwhile the last one calls no MPI function.
void run_part(int rank) {
  const bool outside = rank == 3;
  OwnComm part(outside ? MPI_UNDEFINED : 0, -rank);  // the group has the ranks in the opposite order
  if (outside) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(15);
    while (!std::filesystem::exists(done_file())) {
      require(std::chrono::steady_clock::now() < limit, "the other ranks to finish without this rank");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::filesystem::remove(done_file());
    return;
  }
  {
    World world = World::from_mpi(part.get(), kOptions);
    part.free();  // the world has its own duplicate
    use_world(world, 2 - rank, 3);
  }
  if (rank == 0) std::ofstream(done_file()) << "done\n";
}

/// Two groups with a world each, and then a world of all ranks beside them.
void run_groups(int rank) {
  const OwnComm half(rank % 2, rank);
  World world = World::from_mpi(half.get(), kOptions);
  use_world(world, rank / 2, 2);
  World all = World::from_mpi(MPI_COMM_WORLD, kOptions);
  use_world(all, rank, 4);
  use_world(world, rank / 2, 2);
}

/// Worlds of one rank, which need no thread level.
void run_alone(int) {
  World world = World::from_mpi(MPI_COMM_SELF, kOptions);
  use_world(world, 0, 1);
}

/// Runs `body` on all ranks with options whose worlds write flight records to one directory. Checks that the directory
/// then has the files `expected`.
void check_flights(int rank, const std::set<std::string>& expected, const std::function<void(WorldOptions)>& body) {
  const std::string folder = fmt::format("/tmp/aliquot-own-mpi-flights-{}", getppid());
  if (rank == 0) std::filesystem::create_directory(folder);
  MPI_Barrier(MPI_COMM_WORLD);
  WorldOptions options = kOptions;
  options.flight_directory = folder;
  body(options);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank != 0) return;
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename().string());
  std::filesystem::remove_all(folder);
  require(names == expected, fmt::format("other files than {}", fmt::join(names, " ")).c_str());
}

/// Creates three worlds that exist at the same time: one of each half of the ranks, and one of all ranks.
void run_flights(int rank) {
  const std::set<std::string> expected{"flight-0000.txt",           "flight-0001.txt",
                                       "flight-0000-world-1-0.txt", "flight-0001-world-1-0.txt",
                                       "flight-0000-world-0-1.txt", "flight-0001-world-0-1.txt",
                                       "flight-0002-world-0-1.txt", "flight-0003-world-0-1.txt"};
  check_flights(rank, expected, [rank](const WorldOptions& options) {
    const OwnComm half(rank % 2, rank);
    const World world = World::from_mpi(half.get(), options), all = World::from_mpi(MPI_COMM_WORLD, options);
    aliquot::write_flight_records("told to end");
  });
}

/// A world of each rank, under a launcher that does not tell the ranks, and then two worlds in sequence of which only
/// rank 1 writes a record.
void run_flights_of_one_rank(int rank) {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    unsetenv(variable);
  const std::set<std::string> expected{"flight-0000.txt", "flight-0000-world-1-0.txt", "flight-0001-world-0-1.txt",
                                       "flight-0001-world-0-2.txt"};
  check_flights(rank, expected, [rank](const WorldOptions& options) {
    for (MPI_Comm comm : {MPI_COMM_SELF, MPI_COMM_WORLD, MPI_COMM_WORLD}) {
      const World world = World::from_mpi(comm, options);
      if (rank == 1 || comm == MPI_COMM_SELF) aliquot::write_flight_records("told to end");
    }
  });
}

/// Rank 0 runs `rendezvous`, and the other ranks call sum().
void sum_or(int rank, const std::function<void(aliquot::Communicator&)>& rendezvous) {
  World world = World::from_mpi(MPI_COMM_WORLD, kOptions);
  double one = 1;
  if (rank == 0) return rendezvous(world.communicator());
  world.sum({&one, 1});
}

void run_sum_and_rendezvous(int rank) {
  sum_or(rank, [](aliquot::Communicator& ranks) {
    const aliquot::ScopedCollectivePurpose purpose("save", 20);
    ranks.gather_objects("here");
  });
}

void run_sum_and_allocate(int rank) {
  sum_or(rank, [](aliquot::Communicator& ranks) {
    ranks.allocate(8, aliquot::RankSizes::kEqual, aliquot::Category::kArena, "test");
  });
}

void run_sum_and_allocate_shared(int rank) {
  sum_or(rank, [](aliquot::Communicator& ranks) { ranks.allocate_shared(16, 8, aliquot::Category::kArena, "test"); });
}

void run_sum_and_split(int rank) {
  sum_or(rank, [](aliquot::Communicator& ranks) { ranks.split(0, 0, "group"); });
}

/// A collective of a worker thread, which may arrive later. The deadline ends the wait.
void run_reduce_and_rendezvous(int rank) {
  WorldOptions options = kOptions;
  options.timeout_seconds = 1;
  World world = World::from_mpi(MPI_COMM_WORLD, options);
  const auto stream = world.device().make_stream(aliquot::Lane::kReduce);
  const aliquot::ScopedCollectivePurpose purpose("save", 20);
  if (rank == 0) world.communicator().barrier(*stream, {"h.7", 118});
  if (rank == 0) stream->synchronize();
  // Rank 1 would wait for 1.5 s, so the message of rank 0 comes first.
  if (rank == 1) world.communicator().gather_objects("here");
}

/// The same, with the rank that waits at the rendezvous first at its deadline.
void run_rendezvous_and_reduce(int rank) {
  WorldOptions options = kOptions;
  options.timeout_seconds = rank == 0 ? 1 : 20;
  World world = World::from_mpi(MPI_COMM_WORLD, options);
  const auto stream = world.device().make_stream(aliquot::Lane::kReduce);
  const aliquot::ScopedCollectivePurpose purpose("save", 20);
  if (rank == 0) world.communicator().gather_objects("here");
  if (rank != 0) world.communicator().barrier(*stream, {"h.7", 118});
  if (rank != 0) stream->synchronize();
}

void run_late(int rank) {
  if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(15));
  World::from_mpi(MPI_COMM_WORLD, {.device = aliquot::DeviceChoice::kHost, .timeout_seconds = 1});
}

void run_null(int rank) {
  OwnComm first(rank == 0 ? 0 : MPI_UNDEFINED, 0);
  World::from_mpi(first.get(), kOptions);
}

void run_two_groups(int rank) {
  const OwnComm own(rank, 0);
  MPI_Comm both = MPI_COMM_NULL;
  MPI_Intercomm_create(own.get(), 0, MPI_COMM_WORLD, 1 - rank, 0, &both);
  World::from_mpi(both, kOptions);
}

void run_all(int) { World::from_mpi(MPI_COMM_WORLD, kOptions); }

constexpr int kDoNotInitialize = -1, kOnlyRankZeroMultiple = -2;

const std::map<std::string, Case> kCases{
    {"multiple",
     {MPI_THREAD_MULTIPLE,
      [](int) {
        World::run(
            1, [](World& world) { world.communicator().gather_objects("here"); }, kOptions);
      }}},
    {"serialized",
     {MPI_THREAD_SERIALIZED,
      [](int) {
        World::run(
            1, [](World&) {}, kOptions);
      }}},
    {"part", {MPI_THREAD_MULTIPLE, run_part}},
    {"groups", {MPI_THREAD_MULTIPLE, run_groups}},
    {"alone", {MPI_THREAD_SINGLE, run_alone}},
    {"flights", {MPI_THREAD_MULTIPLE, run_flights}},
    {"flights_of_one_rank", {MPI_THREAD_MULTIPLE, run_flights_of_one_rank}},
    {"sum_and_rendezvous", {MPI_THREAD_MULTIPLE, run_sum_and_rendezvous}},
    {"sum_and_allocate", {MPI_THREAD_MULTIPLE, run_sum_and_allocate}},
    {"sum_and_allocate_shared", {MPI_THREAD_MULTIPLE, run_sum_and_allocate_shared}},
    {"sum_and_split", {MPI_THREAD_MULTIPLE, run_sum_and_split}},
    {"reduce_and_rendezvous", {MPI_THREAD_MULTIPLE, run_reduce_and_rendezvous}},
    {"rendezvous_and_reduce", {MPI_THREAD_MULTIPLE, run_rendezvous_and_reduce}},
    {"late", {MPI_THREAD_MULTIPLE, run_late}},
    {"funneled", {MPI_THREAD_FUNNELED, run_all}},
    {"one_rank_serialized", {kOnlyRankZeroMultiple, run_all}},
    {"not_initialized", {kDoNotInitialize, [](int) { World::from_mpi_handle(0, kOptions); }}},
    {"finalized",
     {MPI_THREAD_MULTIPLE,
      [](int) {
        MPI_Finalize();
        World::from_mpi_handle(0, kOptions);
      }}},
    {"null", {MPI_THREAD_MULTIPLE, run_null}},
    {"unknown_handle", {MPI_THREAD_MULTIPLE, [](int) { World::from_mpi_handle(123456, kOptions); }}},
    {"two_groups", {MPI_THREAD_MULTIPLE, run_two_groups}},
    {"as_threads",
     {MPI_THREAD_MULTIPLE, [](int) { World::from_mpi(MPI_COMM_WORLD, {.kind = aliquot::WorldChoice::kThreads}); }}},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || !kCases.contains(argv[1])) return 64;
  const Case& chosen = kCases.at(argv[1]);
  const char* launched_as = std::getenv("OMPI_COMM_WORLD_RANK");
  const bool first = launched_as == nullptr || std::string(launched_as) == "0";
  int level = chosen.thread_level, provided = 0;
  if (level == kOnlyRankZeroMultiple) level = first ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
  if (level != kDoNotInitialize) MPI_Init_thread(&argc, &argv, level, &provided);
  int status = 0;
  try {
    chosen.run(level == kDoNotInitialize ? 0 : world_rank());
  } catch (const aliquot::Error& error) {
    fmt::print(stderr, "aliquot: {}\n", error.what());
    status = static_cast<int>(error.exit_code());
  }
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized != 0 && finalized == 0) MPI_Finalize();
  return status;
}
