#include "apps/options/products_option.h"

#include <array>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr std::array kWords{EnumName{"full", OperandRounding::kNone}, EnumName{"tf32", OperandRounding::kTf32},
                            EnumName{"fp8", OperandRounding::kFp8}};

}  // namespace

void add_products(OptionTable& table, OperandRounding& products) {
  table.choice(
      "products", products, kWords,
      "Operands of matrix products on GPUs: full has the type of --precision; tf32 rounds fp32 to 10 bits; fp8 "
      "rounds those of the linear layers in blocks to 8 bits.");
}

void check_products(OperandRounding products, const CommonOptions& options, bool on_gpu, const std::string& gpus) {
  if (products == OperandRounding::kTf32 && (!on_gpu || options.precision != DType::kFloat32))
    throw UsageError("--products tf32 needs " + gpus + " and --precision fp32.");
  if (products != OperandRounding::kFp8) return;
  if (!on_gpu || options.precision != DType::kBFloat16)
    throw UsageError("--products fp8 needs " + gpus + " and --precision bf16.");
  if (options.engine.tensor > 1 && options.engine.reproducible) {
    throw UsageError(
        "--products fp8 scales parts of matrices that depend on --tensor, so it cannot be combined with "
        "--reproducible: leave out --products or --reproducible.");
  }
}

}  // namespace aliquot
