#pragma once
// Functions that ReplayCheck and SumCheck share.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/plan/schedule.h"
#include "engine/run/mesh_groups.h"
#include "kernels/elementwise/block_digest.h"
#include "kernels/system/error.h"
#include "sharding/comm/run_on_all_or_throw.h"

namespace aliquot {

/// Adds the next value to a sum that depends on the order of the values. A change of one value always changes the sum.
constexpr uint64_t with_value(uint64_t sum, uint64_t value) { return sum * kDigestChainFactor + value; }

/// The bytes of a value that ranks exchange. from_bytes() returns the values in received bytes.
template <typename T>
std::string bytes_of(const T& value) {
  return to_bytes(std::span<const T>(&value, 1));
}

/// Where the first difference is. With flat = -1, it is in no flat buffer.
struct FirstDifference {
  int32_t flat = -1;
  int64_t block = -1;  // in the flat buffer
  int owner = 0;       // a rank that has the flat buffer
};

/// Throws ReplayError on all ranks. The caller sets `ranks` and `is_decided` of `finding`. This function sets its other
/// fields.
/// `wrong`: what the ranks computed, e.g. "wrong gradients of micro-batch 0". Collective over all ranks, which must
/// pass the same arguments.
[[noreturn]] void throw_replay_error(const Plan& plan, const MeshGroups& groups, const FirstDifference& first,
                                     ReplayError::Finding finding, std::string_view wrong, int64_t step);

}  // namespace aliquot
