#pragma once
// Common parts of the functions that create worlds.

#include <cstdint>
#include <memory>
#include <string>

#include "sharding/world.h"

namespace aliquot {

/// Returns the device of options.make_device, if set. Otherwise returns a host device with options.threads_per_rank
/// threads, or with `share` threads if that option is 0.
std::unique_ptr<Device> make_rank_device(const WorldOptions& options, int rank, int share);

/// Checks the options, and limits the timeout to 1e9 seconds, which clocks can represent. Throws UsageError if the
/// timeout is not positive, or if the kind of world does not support the device.
WorldOptions validated_options(WorldOptions options);

enum class RanksAre : uint8_t { kThreads, kProcesses };

/// The last step in creating a world. Waits for all ranks, so that a rank that failed earlier is reported here. Adds
/// the flight recorder, and makes failures of work on a stream abort all ranks. Collective.
World finish_world_setup(World made, const WorldOptions& options, RanksAre ranks_are);

/// Aborts all ranks with the message of the current exception, and writes the flight record of this rank. Must be
/// called from a catch block.
void abort_and_write_flight_record(World& world) noexcept;

/// Returns the topology of ranks that are threads of this process, without GPUs.
Topology threads_topology(int rank_count);

/// Returns a text such as "rank 2 failed: REASON" for the exception that is being handled.
std::string failure_text(int rank);

/// Returns failure_text(), and the exit code of the exception, as a reason to pass to abort(). See
/// sharding/comm/abort_reason.h.
std::string failure_reason(int rank);

/// Returns a world whose only rank is this thread.
World make_single_rank_world(const WorldOptions& options);

struct LauncherInfo {
  std::string by;         // e.g. "mpirun" or "srun"
  int process_count = 1;  // number of processes; 0: unknown
  int least_count = 1;    // lower bound of the number of processes, if process_count is 0

  std::string text() const;  // e.g. "srun started 4 processes"
};

/// Returns the world of the processes that MPI connects. Throws UnavailableError, with advice, if MPI connects fewer
/// processes than the launcher started, or if this build has no MPI.
World make_mpi_world(const WorldOptions& options, const LauncherInfo& launch);

}  // namespace aliquot
