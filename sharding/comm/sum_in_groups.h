#pragma once
// Sums of more sources than one kernel supports.

#include <cstddef>
#include <span>

#include "kernels/elementwise/kernels.h"

namespace aliquot {

/// Computes the same bits as kernels.sum_tree(stream, sum), for any number of sources. First adds each group of
/// `group_size` sources to an entry of `partial_sums` (sum.count floats each), then adds the partial sums. `group_size`
/// must be a power of two, so that each group is a subtree. With a single group, `partial_sums` is not used. The memory
/// behind the spans must stay alive until the stream has finished the sum.
void sum_in_groups(const Kernels& kernels, Stream& stream, const TreeSum& sum, std::size_t group_size,
                   std::span<std::byte* const> partial_sums);

}  // namespace aliquot
