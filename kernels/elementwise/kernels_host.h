#pragma once
// The loops table of every host device.

#include "kernels/elementwise/kernels.h"

namespace aliquot {

/// Loops on host streams, cut between the threads of the stream's pool, with the best instructions of this processor.
const Kernels& host_kernels();

}  // namespace aliquot
