#pragma once
// What this machine's cores and memory do in a second, measured.

#include "engine/simulate.h"

namespace aliquot {

struct MachineRates {
  int rank_count = 2, threads_per_rank = 1;  // what was measured: ranks as threads, all at work at once
  CostModel cost;                            // the rates of one of them; what was not measured is as it comes
};

/// Takes a few seconds and a few hundred MiB. Throws UnavailableError where memory or threads are missing.
MachineRates measure_machine();

}  // namespace aliquot
