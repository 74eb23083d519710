// Tests the tree of partial sums that the CUDA sum keeps in registers. Runs on the host.
#include "kernels/elementwise/register_tree.h"

#include <bit>
#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace aliquot {
namespace {

// Stands in for a number. Its text records the additions that produced it.
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

TEST(RegisterTree, AddsInTheOrderOfTheAlignedTree) {
  for (int count = 1; count <= 256; ++count) {
    const auto leaf = [](int r) { return SumExpression{std::to_string(r)}; };
    const std::string expected = tree(0, static_cast<int>(std::bit_ceil(static_cast<unsigned>(count))), count);
    ASSERT_EQ((aligned_tree_sum<SumExpression, 6>(count, leaf).text), expected) << count;
  }
}

}  // namespace
}  // namespace aliquot
