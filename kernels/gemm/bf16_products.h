#pragma once
// The ways to multiply matrices of bf16 on a host, and which of them this processor has.

#include <cstdint>
#include <string_view>

namespace aliquot {

/// All multiply exactly and sum in fp32, in orders of their own; pairs and tiles take subnormals for zero. kWidened: in fp32, by what multiplies that. kPairs: by
/// instructions that add two products to a sum (AVX512_BF16), which Intel's processors run no faster than kWidened.
/// kTiles: by those that multiply tiles (AMX).
enum class Bf16ProductMethod : uint8_t { kWidened, kPairs, kTiles };

/// The word that ALIQUOT_BF16_PRODUCTS takes: "widened", "pairs", "tiles".
std::string_view name(Bf16ProductMethod method);

/// Whether this processor, and its kernel, can. Asking for tiles asks the kernel for leave to use them, for the whole process.
bool supports_bf16_product_method(Bf16ProductMethod method);

/// The quickest here, or what the environment variable ALIQUOT_BF16_PRODUCTS asks for; read once. Throws UsageError if that
/// is no such word, or cannot be had.
Bf16ProductMethod selected_bf16_product_method();

}  // namespace aliquot
