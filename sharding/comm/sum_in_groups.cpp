#include "sharding/comm/sum_in_groups.h"

#include <algorithm>

namespace aliquot {

void sum_in_groups(const Kernels& kernels, Stream& stream, const TreeSum& sum, std::size_t group_size,
                   std::span<std::byte* const> partial_sums) {
  if (sum.bases.size() <= group_size) return kernels.sum_tree(stream, sum);
  std::size_t group_count = 0;
  for (std::size_t first = 0; first < sum.bases.size(); first += group_size) {
    TreeSum group = sum;
    group.bases = sum.bases.subspan(first, std::min(group_size, sum.bases.size() - first));
    group.to = partial_sums[group_count++];
    group.to_dtype = DType::kFloat32;
    group.factor = 1.0f;
    group.block_squares = nullptr;
    kernels.sum_tree(stream, group);
  }
  TreeSum total = sum;
  total.bases = partial_sums.first(group_count);
  total.offset_bytes = 0;
  total.from_dtype = DType::kFloat32;
  kernels.sum_tree(stream, total);
}

}  // namespace aliquot
