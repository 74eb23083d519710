#include "kernels/gemm/bf16_products.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "kernels/elementwise/host_loops.h"
#include "kernels/system/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace aliquot {
namespace {

constexpr std::array kMethods{Bf16ProductMethod::kTiles, Bf16ProductMethod::kPairs, Bf16ProductMethod::kWidened};

#if defined(__x86_64__)
bool has_tiles() {
  constexpr unsigned kAmxBf16 = 1U << 22, kAmxTile = 1U << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  // A process must request permission to use AMX, because AMX enlarges the state that Linux saves for each thread.
  constexpr long kArchReqXcompPerm = 0x1023, kXfeatureXtileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtileData) == 0;
}

bool has_pairs() { return __builtin_cpu_supports("avx512bf16") != 0; }
bool is_intel() { return __builtin_cpu_is("intel") != 0; }
#else
bool has_tiles() { return false; }
bool has_pairs() { return false; }
bool is_intel() { return false; }
#endif

Bf16ProductMethod choose_bf16_product_method() {
  const char* value = std::getenv("ALIQUOT_BF16_PRODUCTS");
  const std::string_view requested = value == nullptr ? "" : value;
  if (requested.empty()) {
    if (supports_bf16_product_method(Bf16ProductMethod::kTiles)) return Bf16ProductMethod::kTiles;
    return supports_bf16_product_method(Bf16ProductMethod::kPairs) && !is_intel() ? Bf16ProductMethod::kPairs
                                                                                  : Bf16ProductMethod::kWidened;
  }
  const auto method =
      std::ranges::find_if(kMethods, [requested](Bf16ProductMethod candidate) { return name(candidate) == requested; });
  if (method == kMethods.end()) {
    throw UsageError("invalid value '" + std::string(requested) +
                     "' for ALIQUOT_BF16_PRODUCTS: expected tiles, pairs or widened");
  }
  if (!supports_bf16_product_method(*method)) {
    throw UsageError(
        "ALIQUOT_BF16_PRODUCTS=" + std::string(requested) +
        " is not possible: the processor, the Linux kernel or ALIQUOT_ISA does not support it; use widened");
  }
  return *method;
}

}  // namespace

std::string_view name(Bf16ProductMethod candidate) {
  switch (candidate) {
    case Bf16ProductMethod::kTiles: return "tiles";
    case Bf16ProductMethod::kPairs: return "pairs";
    case Bf16ProductMethod::kWidened: break;
  }
  return "widened";
}

bool supports_bf16_product_method(Bf16ProductMethod candidate) {
  if (candidate == Bf16ProductMethod::kWidened) return true;
  if (best_isa() != Isa::kAvx512) return false;
  if (candidate == Bf16ProductMethod::kPairs) return has_pairs();
  static const bool tiles = has_tiles();
  return tiles;
}

Bf16ProductMethod selected_bf16_product_method() {
  static const Bf16ProductMethod chosen = choose_bf16_product_method();
  return chosen;
}

}  // namespace aliquot
