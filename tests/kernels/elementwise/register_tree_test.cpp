// What CUDA's sum does in registers, run on the host.
#include "kernels/elementwise/register_tree.h"

#include <bit>
#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace aliquot {
namespace {

// A value that remembers how it was added.
struct SumExpression {
  std::string text;
  friend SumExpression operator+(const SumExpression& a, const SumExpression& b) {
    return {"(" + a.text + "+" + b.text + ")"};
  }
};

std::string tree(int begin, int width, int count) {
  if (width == 1) return std::to_string(begin);
  const std::string left = tree(begin, width / 2, count);
  if (begin + width / 2 >= count) return left;
  return "(" + left + "+" + tree(begin + width / 2, width / 2, count) + ")";
}

TEST(RegisterTree, AddsInTheAlignedTreeForEveryCount) {
  for (int count = 1; count <= 256; ++count) {
    const auto leaf = [](int r) { return SumExpression{std::to_string(r)}; };
    const std::string expected = tree(0, static_cast<int>(std::bit_ceil(static_cast<unsigned>(count))), count);
    ASSERT_EQ((aligned_tree_sum<SumExpression, 6>(count, leaf).text), expected) << count;
  }
}

}  // namespace
}  // namespace aliquot
