#pragma once
// The option --products.

#include <string>

#include "engine/options/common_options.h"
#include "kernels/gemm/operand_rounding.h"

namespace aliquot {

/// `products` must outlive the table.
void add_products(OptionTable& table, OperandRounding& products);

/// Throws UsageError if the other options contradict --products. `options` must have a precision. `gpus` names what the
/// user must give to use GPUs.
void check_products(OperandRounding products, const CommonOptions& options, bool on_gpu, const std::string& gpus);

}  // namespace aliquot
