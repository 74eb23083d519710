#pragma once
// What this machine's cores and memory do in a second, measured.

#include "engine/simulate.h"

namespace aliquot {

struct MachineRates {
  int rank_count = 2, threads_per_rank = 1;  // what was measured: ranks, all at work at once
  int ranks_on_node = 2;                     // of the first
  bool several_nodes = false;                // and what is between them was measured too
  bool launched = false;                     // as processes, by a launcher
  bool leads = false;                        // this process has the first rank, which is to tell; others have no rates
  CostModel cost;                            // the rates of one of them; what was not measured is as it comes
};

/// Of the ranks that a launcher started, or of two as threads. Takes a few seconds and a few hundred MiB. Throws
/// UnavailableError where memory or threads are missing.
MachineRates measure_machine();

}  // namespace aliquot
