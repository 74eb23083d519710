#pragma once
// Products of bf16 matrices by the processor's own instructions.

#include "apps/models/product.h"

namespace aliquot {

/// One tile on the calling thread, both operands bf16. What oneDNN prepares for a shape is kept for the thread's next
/// product of that shape. Throws FaultError when oneDNN refuses.
void multiply_native(const Product& product);

/// Makes oneDNN compute on the calling thread alone.
void compute_alone();

}  // namespace aliquot
