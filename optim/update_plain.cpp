// The host's update for any processor.

#include "optim/code_blocks.h"
#include "optim/stream_block.h"
#include "optim/update_runs.h"

namespace aliquot {

const UpdateRuns& update_runs_plain() { return kRuns; }

}  // namespace aliquot
