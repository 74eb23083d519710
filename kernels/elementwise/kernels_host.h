#pragma once
#include "kernels/elementwise/kernels.h"

namespace aliquot {

/// Returns the table of host devices. Loops use the threads of the stream's pool and the best instruction set of this
/// processor.
const Kernels& host_kernels();

}  // namespace aliquot
