#include "optim/update/update_host.h"

namespace aliquot {

const UpdateRuns& update_runs(Isa) { return update_runs_plain(); }

}  // namespace aliquot
