// The host update for all processors.

#include "optim/update/update_runs.h"

namespace aliquot {

const UpdateRuns& update_runs_plain() { return kBuiltInUpdateRuns<PlainBlocks>; }

}  // namespace aliquot
