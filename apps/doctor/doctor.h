#pragma once
// The reports and measurements of aliquot doctor.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/cost/simulate.h"
#include "sharding/world.h"

namespace aliquot {

struct MachineReport {
  struct Line {
    std::string what, text;
  };
  std::vector<Line> lines;
  std::vector<std::string> missing;  // the missing features, each with the command or package that adds it
};

/// Examines the build and the machine. Forks a child process that initializes MPI, so call it before the program has
/// threads.
MachineReport report_machine();

struct MachineRates {
  bool has_gpus = false;
  // How many ranks were measured at the same time, and the threads of each. With has_gpus, each rank had its own GPU.
  int rank_count = 2, threads_per_rank = 1;
  int ranks_on_node = 2;       // how many of these ranks are on the first node
  bool several_nodes = false;  // whether the links between nodes were measured too
  bool launched = false;       // whether a launcher started the ranks as processes
  int64_t memory_bytes = 0;    // of a GPU or, without GPUs, of the node; 0: unknown
  bool is_rank_zero = false;   // whether this process has rank 0; other processes have no rates
  CostModel cost;              // the rates of rank 0; rates that were not measured have their default values
};

/// Measures with the ranks that a launcher started. Without a launcher, starts ranks as threads: one for each GPU, or
/// two on a host. Runs for a few seconds and allocates a few hundred MiB, or 2 GiB on each GPU. Throws UnavailableError
/// if there is not enough memory, if threads cannot be started, or if `device` requires GPUs and there are none.
MachineRates measure_machine(DeviceChoice device);

/// Problem sizes of the measurements, large enough that the start-up time of an operation is negligible.
struct MeasuredSizes {
  int64_t elements;  // fp32 elements per array, many more than caches hold
  /// Dimensions of the matrix product. Each of its three matrices must fit in an array of 4 * `elements` bytes.
  int64_t rows, columns, depth;
  int repeats;  // operations between two readings of the clock
  int rounds;   // number of measurements; the fastest one counts

  static MeasuredSizes of(DeviceKind device);
};

/// Measures one rank; all ranks must call it. Takes several seconds and allocates five arrays. Matrix products are fp32
/// on hosts and bf16 on GPUs. Rates that cannot be measured are set to those of a typical machine. Throws
/// UnavailableError if there is not enough memory.
CostModel measure_rank(World& world, const MeasuredSizes& sizes);

struct LinkRates {
  LinkCost alone, beside_compute;
  double compute_share = 0;  // fraction by which concurrent communication slows down computation
};

/// Measures the links between nodes; all ranks of a world of several nodes must call it. `compute` computes for about a
/// millisecond and returns when the computation has ended. Takes several seconds, or longer on slow links.
LinkRates measure_links(World& world, const std::function<void()>& compute);

}  // namespace aliquot
