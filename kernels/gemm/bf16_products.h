#pragma once
// The methods to multiply bf16 matrices on a host, and the selection of one for this processor.

#include <cstdint>
#include <string_view>

namespace aliquot {

/// All methods multiply exactly and sum in fp32, each in a different order. kPairs and kTiles treat subnormals as zero.
enum class Bf16ProductMethod : uint8_t {
  kWidened,  // converts the operands to fp32 and uses the fp32 loops
  kPairs,    // AVX512_BF16, which adds two products to each sum; not faster than kWidened on Intel processors
  kTiles,    // AMX, whose registers (AMX tiles) each hold a small matrix
};

/// Returns the name of the method in ALIQUOT_BF16_PRODUCTS: "widened", "pairs" or "tiles".
std::string_view name(Bf16ProductMethod method);

/// Returns whether the processor, the Linux kernel and ALIQUOT_ISA permit the method. The first call with kTiles asks
/// the kernel for permission to use AMX tiles, for the whole process.
bool supports_bf16_product_method(Bf16ProductMethod method);

/// Returns the fastest method for this processor, or the one in the environment variable ALIQUOT_BF16_PRODUCTS, which
/// is read once. Throws UsageError if the variable is invalid or its method is not supported.
Bf16ProductMethod selected_bf16_product_method();

}  // namespace aliquot
