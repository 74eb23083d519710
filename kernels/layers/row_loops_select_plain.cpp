#include "kernels/layers/row_loops.h"

namespace aliquot {

const RowLoops& row_loops(Isa) { return row_loops_plain(); }
const RowLoops& row_loops() { return row_loops_plain(); }

}  // namespace aliquot
