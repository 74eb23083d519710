#pragma once
// The ranks of one program, and how they came to be.

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kernels/device/device.h"
#include "sharding/comm/communicator.h"

#pragma GCC visibility push(default)
namespace aliquot {

class FlightRecorder;

enum class DeviceChoice : uint8_t { kAuto, kHost, kCuda };
enum class WorldChoice : uint8_t { kAuto, kThreads, kMpi, kNccl };

struct WorldOptions {
  DeviceChoice device = DeviceChoice::kAuto;  // auto: a GPU where there is one
  WorldChoice kind =
      WorldChoice::kAuto;        // auto: MPI under a launcher, else threads; NCCL where each rank has a GPU of its own
  int threads_per_rank = 0;      // 0: the node's cores divided by the ranks on it, at least 1
  double timeout_seconds = 600;  // deadline of every collective; INFINITY: none
  /// Where a rank that fails leaves a record of its last collectives, a folder that is there, unless ALIQUOT_FLIGHT_DIR names
  /// another; empty: nowhere.
  std::string flight_directory = {};
  /// Ranks that are threads: called from one of them, with the first failure, when others have not come back some seconds
  /// after it (as long as collectives may wait, at most 10): no thread can be ended alone. Without it the wait goes on.
  std::function<void(std::exception_ptr first, const std::string& who)> on_stuck = nullptr;
  std::function<std::unique_ptr<Device>(int rank)> make_device =
      nullptr;  // tests: a device of their own; ranks then are threads
};

/// One rank's place in the world: its device and the communicator of all ranks. Move-only; destroyed by its own thread.
class World {
 public:
  World(std::unique_ptr<Device> device, std::unique_ptr<Communicator> communicator)
      : device_(std::move(device)), communicator_(std::move(communicator)) {}
  World(World&&) = default;
  World& operator=(World&& other) noexcept {
    if (this == &other) return *this;
    communicator_.reset();  // it refers to the device
    device_ = std::move(other.device_);
    flight_ = std::move(other.flight_);
    communicator_ = std::move(other.communicator_);
    turns_ = std::move(other.turns_);
    return *this;
  }
  ~World() = default;

  /// The world that a launcher (mpirun, srun) started this process into, or this process alone. Throws UnavailableError,
  /// with what to type, when a launcher started several of us without a common world.
  static World from_environment(const WorldOptions& options = {});

  /// Runs `body` on `rank_count` ranks, each a thread of its own, and returns when all are done. If a rank throws, the
  /// others leave their collectives, and the first failure is rethrown here; so do those who wait for a rank that has returned.
  static void threads(int rank_count, const std::function<void(World&)>& body, const WorldOptions& options = {});

  /// Runs `body` on this program's ranks: the one that this process is in the world a launcher started it into, or else
  /// `rank_count` threads. If a rank throws, the others leave their collectives, told which rank failed and why, and
  /// throw CommunicationError here; the rank's own failure is rethrown here. What a program's main() calls.
  static void run(int rank_count, const std::function<void(World&)>& body, const WorldOptions& options = {});

  int rank() const { return communicator_->rank(); }
  int rank_count() const { return communicator_->rank_count(); }
  const Topology& topology() const { return communicator_->topology(); }
  Device& device() { return *device_; }
  Communicator& communicator() { return *communicator_; }
  /// Adds up small things in host memory over all ranks (losses, say), at most Communicator::kSmallCount. Collective; blocks.
  void sum(std::span<double> values);

  /// Progress only grows while the communicator lives, so those who publish take turns, on all ranks alike: whoever is not
  /// the holder lets it finish, meets all ranks, and begins above where it ended.
  struct Turns {
    const void* holder = nullptr;
    std::function<uint64_t()> finish = nullptr;  // the holder comes to rest, and says what it published less than
    uint64_t base = 0;                           // above all that was published
  };
  Turns& turns() { return turns_; }

  /// `made`, with its collectives noted from now on. Collective.
  static World noted(World made, std::shared_ptr<FlightRecorder> flight);
  /// What notes them; null in a world that was put together by hand.
  FlightRecorder* flight() { return flight_.get(); }

 private:
  std::shared_ptr<FlightRecorder> flight_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> communicator_;
  Turns turns_;
};

/// How many processes a launcher started together with this one, by its environment variables; 1 without a launcher.
int launched_process_count();

}  // namespace aliquot
#pragma GCC visibility pop
