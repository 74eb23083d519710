#pragma once
// What aliquot doctor reports and measures.

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
  std::vector<std::string> missing;  // each with what would add it
};

/// Looks, and starts nothing but MPI, in a child. To be called before the program has threads.
MachineReport report_machine();

struct MachineRates {
  bool has_gpus = false;
  int rank_count = 2, threads_per_rank = 1;  // what was measured: ranks, all at work at once; on GPUs one each
  int ranks_on_node = 2;                     // of the first
  bool several_nodes = false;                // and what is between them was measured too
  bool launched = false;                     // as processes, by a launcher
  bool is_rank_zero = false;                 // this process has the first rank, which is to tell; others have no rates
  CostModel cost;                            // the rates of one of them; what was not measured is as it comes
};

/// Of the ranks that a launcher started, or of threads: one a GPU, two on a host. Takes a few seconds, and a few hundred MiB,
/// or 2 GiB of each GPU. Throws UnavailableError where memory or threads are missing, or GPUs that were asked for.
MachineRates measure_machine(DeviceChoice device);

/// How much is done at once: so much that starting it does not show.
struct MeasuredSizes {
  int64_t elements;              // of arrays: far more than caches hold
  int64_t rows, columns, depth;  // of a product: no more elements than an array has, each
  int repeats;                   // of copies, updates and products between two looks at the clock
  int rounds;                    // of which the best counts

  static MeasuredSizes of(DeviceKind device);
};

/// Collective; needs seconds, and five arrays of memory. Products are fp32 on hosts, bf16 on GPUs. What was not measured is as
/// typical machines have it. Throws UnavailableError where memory is missing.
CostModel measure_rank(World& world, const MeasuredSizes& sizes);

/// Of a world of several nodes; collective.
struct LinkRates {
  LinkCost alone, beside_compute;
  double compute_share = 0;  // that computing loses meanwhile
};

/// `compute` is a piece of what a rank computes, a millisecond or so long, over when it returns. Takes seconds; the slower the link, the more.
LinkRates measure_links(World& world, const std::function<void()>& compute);

}  // namespace aliquot
