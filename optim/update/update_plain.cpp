// The host's update for any processor.

#include "optim/update/update_runs.h"

namespace aliquot {

const UpdateRuns& update_runs_plain() { return kBuiltInUpdateRuns<PlainBlocks>; }

}  // namespace aliquot
