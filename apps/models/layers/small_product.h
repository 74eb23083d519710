#pragma once
// Matrix products that are one task of many.

#include "kernels/gemm/product.h"

namespace aliquot {

/// Computes an fp32 product on the calling thread, by oneDNN. Throws FaultError when oneDNN refuses.
void multiply_here(const Product& product);

}  // namespace aliquot
