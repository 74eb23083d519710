#pragma once
// What this machine's processors, memory and links do in a second, measured.

#include "engine/cost/simulate.h"
#include "sharding/world.h"

namespace aliquot {

struct MachineRates {
  bool has_gpus = false;
  int rank_count = 2, threads_per_rank = 1;  // what was measured: ranks, all at work at once; on GPUs one each
  int ranks_on_node = 2;                     // of the first
  bool several_nodes = false;                // and what is between them was measured too
  bool launched = false;                     // as processes, by a launcher
  bool leads = false;                        // this process has the first rank, which is to tell; others have no rates
  CostModel cost;                            // the rates of one of them; what was not measured is as it comes
};

/// Of the ranks that a launcher started, or of threads: one a GPU, two on a host. Takes a few seconds, and a few hundred MiB,
/// or 2 GiB of each GPU. Throws UnavailableError where memory or threads are missing, or GPUs that were asked for.
MachineRates measure_machine(DeviceChoice device);

}  // namespace aliquot
