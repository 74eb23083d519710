#pragma once
// Sums of more sources than one kernel takes.

#include <cstddef>
#include <span>

#include "kernels/elementwise/kernels.h"

namespace aliquot {

/// The same bits as kernels.sum_tree(stream, sum). Where there are several groups of `group_size` sources, a power of two,
/// each is added into its place of `partial_sums` first, sum.count floats, and then these are: a group is a subtree. With
/// one group `partial_sums` is not used. All that the spans refer to stays alive until the stream has come past.
void sum_in_groups(const Kernels& kernels, Stream& stream, const TreeSum& sum, std::size_t group_size,
                   std::span<std::byte* const> partial_sums);

}  // namespace aliquot
