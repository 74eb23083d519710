#include "optim/update/update_host.h"

namespace aliquot {

const UpdateRuns& update_runs(Isa isa) {
  switch (isa) {
    case Isa::kPlain: return update_runs_plain();
    case Isa::kAvx2: return update_runs_avx2();
    case Isa::kAvx512: return update_runs_avx512();
  }
  return update_runs_plain();
}

}  // namespace aliquot
