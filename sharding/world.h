#pragma once
// The ranks of a program, which are threads of one process, or processes that a launcher started.

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kernels/device/device.h"
#include "sharding/comm/communicator.h"
#include "sharding/nccl/nccl_options.h"

#pragma GCC visibility push(default)
namespace aliquot {

class FlightRecorder;

enum class DeviceChoice : uint8_t { kAuto, kHost, kCuda };
enum class WorldChoice : uint8_t { kAuto, kThreads, kMpi, kNccl };

struct WorldOptions {
  DeviceChoice device = DeviceChoice::kAuto;  // kAuto: a GPU if the machine has one
  /// kAuto: the ranks are processes if a launcher started this process, and otherwise threads. They use NCCL if each
  /// rank has its own GPU.
  WorldChoice kind = WorldChoice::kAuto;
  int threads_per_rank = 0;      // 0: the allowed cores of the node divided by its ranks, at least 1
  double timeout_seconds = 600;  // deadline of every collective; INFINITY: no deadline
  NcclOptions nccl = {};         // for worlds that use NCCL
  /// An existing directory in which a rank writes its flight record if it fails. Empty: no flight record is written.
  /// The environment variable ALIQUOT_FLIGHT_DIR overrides it.
  std::string flight_directory = {};
  /// Only for ranks that are threads. Called if some ranks still run a certain time after another rank failed. This
  /// time is timeout_seconds + 1, but at most 10 seconds. The thread that failed first calls it with its exception;
  /// `who` lists the ranks that have not returned. The function should end the process, because a single thread cannot
  /// be ended. If it is not set, World::threads() continues to wait.
  std::function<void(std::exception_ptr first, const std::string& who)> on_stuck = nullptr;
  /// For tests: creates each rank's device. Ranks are then threads.
  std::function<std::unique_ptr<Device>(int rank)> make_device = nullptr;
};

/// One rank of the world: its device, and the communicator of all ranks. Move-only. The rank's thread must destroy it.
class World {
 public:
  World(std::unique_ptr<Device> device, std::unique_ptr<Communicator> communicator)
      : device_(std::move(device)), communicator_(std::move(communicator)) {}
  World(World&&) = default;
  World& operator=(World&& other) noexcept {
    if (this == &other) return *this;
    communicator_.reset();  // first, because the communicator refers to the device
    device_ = std::move(other.device_);
    flight_ = std::move(other.flight_);
    communicator_ = std::move(other.communicator_);
    progress_publisher_ = std::move(other.progress_publisher_);
    return *this;
  }
  ~World() = default;

  /// Joins the world of the processes that a launcher (mpirun, srun) started. Without a launcher, creates a world of
  /// one rank. Throws UnavailableError, with advice, if MPI did not connect the processes.
  static World from_environment(const WorldOptions& options = {});

  /// Creates the world of the ranks of an MPI communicator of the program, which may have a part of its ranks. Other
  /// ranks need not call it. `communicator` is an MPI_Comm; <aliquot/mpi.h> defines the function for this type.
  /// Collective over `communicator`, which is duplicated and not used afterwards. The program initializes MPI before
  /// this call, and finalizes it after it has destroyed the world. Throws UsageError if the communicator is
  /// MPI_COMM_NULL or an intercommunicator, or if MPI is not initialized. Throws UnavailableError if there are several
  /// ranks, and one did not initialize MPI with MPI_THREAD_MULTIPLE. If a rank of the communicator does not call it
  /// before the deadline, the processes of the other ranks end.
  template <typename MpiComm>
  static World from_mpi(MpiComm /*communicator*/, const WorldOptions& options = {}) {
    static_assert(sizeof(MpiComm) == 0, "World::from_mpi() needs #include <aliquot/mpi.h>");
    return from_mpi_handle(0, options);
  }
  /// The same for the Fortran handle of a communicator, which MPI_Comm_c2f() returns.
  static World from_mpi_handle(int communicator, const WorldOptions& options = {});

  /// Runs `body` on `rank_count` threads, one per rank, and returns when all have returned. If a rank throws, the
  /// collectives of the others throw CommunicationError, and this function rethrows the first failure. Collectives also
  /// throw if they wait for a rank whose `body` has returned.
  static void threads(int rank_count, const std::function<void(World&)>& body, const WorldOptions& options = {});

  /// Runs `body` on all ranks; intended for main(). Under a launcher this process is one rank, and `rank_count` has no
  /// effect. Otherwise it behaves like threads(). If a rank throws, its process rethrows the failure, and the other
  /// processes throw CommunicationError with the failed rank and the reason.
  static void run(int rank_count, const std::function<void(World&)>& body, const WorldOptions& options = {});

  int rank() const { return communicator_->rank(); }
  int rank_count() const { return communicator_->rank_count(); }
  const Topology& topology() const { return communicator_->topology(); }
  Device& device() { return *device_; }
  Communicator& communicator() { return *communicator_; }
  /// Replaces each value, for example a loss, by its sum over all ranks. Accepts at most Communicator::kSmallCount
  /// values in host memory. Collective; blocks.
  void sum(std::span<double> values);

  /// The executor that currently publishes progress through the communicator. Published progress must only increase. A
  /// new executor therefore calls `finish` of the previous one, waits for all ranks, and starts at `base`. The order of
  /// executors is the same on all ranks.
  struct ProgressPublisher {
    const void* executor = nullptr;              // null: no executor
    std::function<uint64_t()> finish = nullptr;  // makes the executor idle and returns a value above its progress
    uint64_t base = 0;                           // greater than all published progress
  };
  ProgressPublisher& progress_publisher() { return progress_publisher_; }

  /// Returns `world` with a flight recorder, which records its collectives from now on. Collective.
  static World with_flight_recorder(World world, std::shared_ptr<FlightRecorder> flight);
  /// Returns the flight recorder, or null if the world was created with the constructor above.
  FlightRecorder* flight() { return flight_.get(); }

 private:
  std::shared_ptr<FlightRecorder> flight_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> communicator_;
  ProgressPublisher progress_publisher_;
};

/// Returns the number of processes that the launcher started, according to its environment variables. Returns 1 without
/// a launcher, or if the number is unknown.
int launched_process_count();

}  // namespace aliquot
#pragma GCC visibility pop
