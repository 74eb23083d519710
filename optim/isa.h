#pragma once
// Stands in for kernels/host_loops.h.
#include <cstdint>
#include <span>
namespace aliquot {
enum class Isa : uint8_t { kPlain, kAvx2, kAvx512 };
std::span<const Isa> available_isas();
Isa best_isa();
}  // namespace aliquot
