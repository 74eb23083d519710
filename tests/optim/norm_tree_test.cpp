// Checks that the norm has the same bits for every partition of the blocks.

#include "optim/norm_tree.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

namespace aliquot {
namespace {

/// Returns a partial sum by the definition of the tree: the sum of its two halves on the level below, or only the left
/// half if the right half has no blocks.
double node_sum(const std::vector<double>& leaves, int level, size_t index) {
  if (level == 0) return leaves[index];
  const double left = node_sum(leaves, level - 1, 2 * index);
  if ((2 * index + 1) << (level - 1) >= leaves.size()) return left;
  return left + node_sum(leaves, level - 1, 2 * index + 1);
}

double tensor_sum(const std::vector<double>& leaves) {
  int level = 0;
  while (size_t{1} << level < leaves.size()) ++level;
  return leaves.empty() ? 0.0 : node_sum(leaves, level, 0);
}

struct Model {
  std::vector<NormTensor> tensors;
  std::vector<std::vector<double>> leaves;

  explicit Model(std::mt19937& random) {
    const int count = std::uniform_int_distribution<int>(0, 8)(random);
    for (int i = 0; i < count; ++i) {
      const int64_t most = std::uniform_int_distribution<int>(0, 3)(random) == 0 ? 3 : 300;
      tensors.push_back({std::to_string(random()), std::uniform_int_distribution<int64_t>(0, most)(random)});
      leaves.emplace_back();
      for (int64_t b = 0; b < tensors.back().block_count; ++b) {
        leaves.back().push_back(std::exp(std::normal_distribution<double>(0.0, 8.0)(random)));
      }
    }
  }

  double norm_by_definition() const {
    std::vector<std::pair<std::string, double>> sums;
    for (size_t i = 0; i < tensors.size(); ++i) sums.emplace_back(tensors[i].name, tensor_sum(leaves[i]));
    std::ranges::sort(sums);
    double total = 0.0;
    for (const auto& [name, sum] : sums) total += sum;
    return total;
  }
};

/// One owner of blocks: its spans, and the sums of squares of its blocks in its own order.
struct Owner {
  std::vector<NormSpan> spans;
  std::vector<double> squares;

  void add(const Model& model, int32_t tensor, int64_t begin, int64_t end) {
    spans.push_back({tensor, begin, end - begin, static_cast<int64_t>(squares.size())});
    const auto& leaves = model.leaves[static_cast<size_t>(tensor)];
    squares.insert(squares.end(), leaves.begin() + begin, leaves.begin() + end);
    squares.push_back(-1.0);  // padding between tensors, which must not be counted
  }
};

std::vector<Owner> cut(const Model& model, int owners, std::mt19937& random) {
  std::vector<Owner> cut(static_cast<size_t>(owners));
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const int64_t blocks = model.tensors[i].block_count;
    std::vector<int64_t> edges{0, blocks};
    for (int h = 1; h < owners; ++h) edges.push_back(std::uniform_int_distribution<int64_t>(0, blocks)(random));
    std::ranges::sort(edges);
    for (size_t h = 0; h < cut.size(); ++h) cut[h].add(model, static_cast<int32_t>(i), edges[h], edges[h + 1]);
  }
  return cut;
}

double norm_of(const NormTree& tree, const std::vector<Owner>& owners, std::vector<double>* tensor_sums = nullptr) {
  std::vector<NormNode> nodes;
  std::vector<double> values;
  for (const Owner& owner : owners) {
    const LocalNormSums local(tree, owner.spans);
    std::vector<double> own(local.nodes().size());
    local.sums(owner.squares.data(), own);
    nodes.insert(nodes.end(), local.nodes().begin(), local.nodes().end());
    values.insert(values.end(), own.begin(), own.end());
  }
  const GlobalNormSum total(tree, nodes);
  if (tensor_sums == nullptr) return total.finish(values);
  tensor_sums->resize(tree.tensors().size());
  return total.finish(values, *tensor_sums);
}

TEST(NormTree, EveryPartitionGivesTheBitsOfTheDefinition) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    const Model model(random);
    const NormTree tree(model.tensors);
    const int owners = std::uniform_int_distribution<int>(1, 9)(random);
    std::vector<double> sums;
    ASSERT_EQ(norm_of(tree, cut(model, owners, random), &sums), model.norm_by_definition()) << "trial " << trial;
    for (size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(sums[i], tensor_sum(model.leaves[i]));
  }
}

TEST(NormTree, ASpanHasFewSubtrees) {
  const NormTree tree({{"a", 1000000}});
  for (const auto& [begin, end] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1000000}, {1, 999999}, {333333, 777777}}) {
    const NormSpan span{0, begin, end - begin, 0};
    EXPECT_LE(tree.nodes({&span, 1}).size(), 41u);
  }
  const NormSpan all{0, 0, 1000000, 0}, tail{0, 1 << 19, 1000000 - (1 << 19), 0};
  EXPECT_EQ(tree.nodes({&all, 1}), (std::vector<NormNode>{{0, 20, 0}}));
  EXPECT_EQ(tree.nodes({&tail, 1}), (std::vector<NormNode>{{0, 19, 1}}));
}

TEST(NormTree, ANonfiniteSquareMakesTheNormNonfinite) {
  std::mt19937 random(2);
  const NormTree tree({{"b", 5}, {"a", 3}});
  Owner owner;
  owner.spans = {{0, 0, 5, 0}, {1, 0, 3, 5}};
  owner.squares = {1, 2, 3, std::numeric_limits<double>::infinity(), 5, 6, 7, 8};
  EXPECT_FALSE(std::isfinite(norm_of(tree, {owner})));
}

TEST(NormTree, RejectsSpansThatDoNotCoverEachBlockOnce) {
  const NormTree tree({{"a", 8}, {"b", 3}});
  const std::vector<NormSpan> most{{0, 0, 7, 0}, {1, 0, 3, 8}};
  EXPECT_THROW(GlobalNormSum(tree, tree.nodes(most)), std::invalid_argument);
  const std::vector<NormSpan> twice{{0, 0, 8, 0}, {1, 0, 3, 8}, {1, 1, 1, 9}};
  EXPECT_THROW(GlobalNormSum(tree, tree.nodes(twice)), std::invalid_argument);
  const std::vector<NormSpan> beyond{{1, 1, 3, 0}};
  EXPECT_THROW(tree.nodes(beyond), std::invalid_argument);
  EXPECT_THROW(NormTree({{"a", 1}, {"a", 2}}), std::invalid_argument);
}

TEST(NormTree, RejectsAWrongNumberOfValues) {
  const NormTree tree({{"a", 3}, {"b", 1}});
  const std::vector<NormSpan> spans{{0, 0, 3, 0}, {1, 0, 1, 3}};
  const LocalNormSums local(tree, spans);
  const GlobalNormSum total(tree, local.nodes());
  const std::vector<double> squares(4, 1.0);
  std::vector<double> values(local.nodes().size()), too_many(values.size() + 1), of_tensors(3);
  EXPECT_THROW(local.sums(squares.data(), too_many), std::invalid_argument);
  local.sums(squares.data(), values);
  EXPECT_THROW(total.finish(too_many), std::invalid_argument);
  EXPECT_THROW(total.finish(values, of_tensors), std::invalid_argument);
  EXPECT_EQ(total.finish(values), 4.0);
}

TEST(NormTree, TheNormOfNothingIsZero) {
  EXPECT_EQ(norm_of(NormTree({}), {}), 0.0);
  EXPECT_EQ(norm_of(NormTree({{"empty", 0}}), {Owner{}}), 0.0);
}

}  // namespace
}  // namespace aliquot
