#pragma once
// What worlds are made of, for the files that make them.

#include <memory>
#include <string>

#include "sharding/world.h"

namespace aliquot {

/// A host device of options.threads_per_rank threads, or, if that is 0, of `share` of them, or the one the options make.
std::unique_ptr<Device> make_rank_device(const WorldOptions& options, int rank, int share);

/// The options as worlds take them: what is for ever to a clock is no longer deadline than a lifetime. Throws UsageError for a
/// deadline that is no time, and for a world that does not fit the device.
WorldOptions validated_options(WorldOptions options);

/// The last step of making a world: a rank that failed before it leaves nobody in a first collective until the deadline. From
/// then on collectives are noted, and work that fails on a lane is told to all. Collective.
World finish_world_setup(World made, const WorldOptions& options);

/// Of the exception that is being handled: makes all ranks leave, and leaves the record of this one's last collectives.
void abort_and_write_flight_record(World& world) noexcept;

/// Of ranks that are threads of this process, none with a GPU.
Topology threads_topology(int rank_count);

/// "rank 2 failed: why", of the exception that is being handled.
std::string failure_text(int rank);

/// A world of one rank, this thread.
World make_single_rank_world(const WorldOptions& options);

/// Who started this process, and as one of how many: 0 if the launcher does not say, and then one of `least_count` or more.
struct LauncherInfo {
  std::string by;
  int process_count = 1;
  int least_count = 1;

  std::string text() const;  // "srun started 4 processes"
};

/// The world that MPI makes of the processes started together. Throws UnavailableError if MPI knows fewer than were
/// started, or in a build without MPI, with what to type.
World make_mpi_world(const WorldOptions& options, const LauncherInfo& launch);

}  // namespace aliquot
