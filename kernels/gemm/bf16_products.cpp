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

constexpr std::array kWays{Bf16Products::kTiles, Bf16Products::kPairs, Bf16Products::kWidened};

#if defined(__x86_64__)
bool has_tiles() {
  constexpr unsigned kAmxBf16 = 1U << 22, kAmxTile = 1U << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  // A thread that uses tiles has more to keep when it is interrupted, so Linux wants to be asked: ARCH_REQ_XCOMP_PERM.
  constexpr long kAskForState = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}

bool has_pairs() { return __builtin_cpu_supports("avx512bf16") != 0; }
bool is_intel() { return __builtin_cpu_is("intel") != 0; }
#else
bool has_tiles() { return false; }
bool has_pairs() { return false; }
bool is_intel() { return false; }
#endif

Bf16Products choose() {
  const char* value = std::getenv("ALIQUOT_BF16_PRODUCTS");
  const std::string_view asked = value == nullptr ? "" : value;
  if (asked.empty()) {
    if (has_bf16_products(Bf16Products::kTiles)) return Bf16Products::kTiles;
    return has_bf16_products(Bf16Products::kPairs) && !is_intel() ? Bf16Products::kPairs : Bf16Products::kWidened;
  }
  const std::string variable = "ALIQUOT_BF16_PRODUCTS=" + std::string(asked);
  const auto way = std::ranges::find_if(kWays, [asked](Bf16Products how) { return name(how) == asked; });
  if (way == kWays.end()) throw UsageError(variable + ": give tiles, pairs or widened, or nothing.");
  if (!has_bf16_products(*way))
    throw UsageError(variable + ": the processor, its kernel or ALIQUOT_ISA has none of these.");
  return *way;
}

}  // namespace

std::string_view name(Bf16Products how) {
  switch (how) {
    case Bf16Products::kTiles: return "tiles";
    case Bf16Products::kPairs: return "pairs";
    case Bf16Products::kWidened: break;
  }
  return "widened";
}

bool has_bf16_products(Bf16Products how) {
  if (how == Bf16Products::kWidened) return true;
  if (best_isa() != Isa::kAvx512) return false;
  if (how == Bf16Products::kPairs) return has_pairs();
  static const bool tiles = has_tiles();
  return tiles;
}

Bf16Products bf16_products() {
  static const Bf16Products chosen = choose();
  return chosen;
}

}  // namespace aliquot
