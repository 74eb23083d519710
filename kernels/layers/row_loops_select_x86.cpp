#include "kernels/layers/row_loops.h"

namespace aliquot {

const RowLoops& row_loops(Isa isa) {
  switch (isa) {
    case Isa::kAvx512: return row_loops_avx512();
    case Isa::kAvx2: return row_loops_avx2();
    case Isa::kPlain: break;
  }
  return row_loops_plain();
}

const RowLoops& row_loops() {
  static const RowLoops& best = row_loops(best_isa());
  return best;
}

}  // namespace aliquot
