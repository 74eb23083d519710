#include "kernels/layers/row_loops.inc"

namespace aliquot {

const RowLoops& row_loops_avx2() {
  static const RowLoops loops = make_row_loops();
  return loops;
}

}  // namespace aliquot
