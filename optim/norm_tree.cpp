#include "optim/norm_tree.h"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>
#include <stdexcept>

#include "kernels/elementwise/leaf_tree.h"

namespace aliquot {
namespace {

/// Returns the lowest level at which one subtree contains all blocks.
int32_t root_level(int64_t block_count) {
  int32_t level = 0;
  while ((int64_t{1} << level) < block_count) ++level;
  return level;
}

int64_t first_block(const NormNode& node) { return node.index << node.level; }

}  // namespace

NormTree::NormTree(std::vector<NormTensor> tensors) : tensors_(std::move(tensors)), name_order_(tensors_.size()) {
  std::iota(name_order_.begin(), name_order_.end(), 0);
  const auto name = [this](int32_t tensor) -> const std::string& { return tensors_[static_cast<size_t>(tensor)].name; };
  std::ranges::sort(name_order_, {}, name);
  const auto twice = std::ranges::adjacent_find(name_order_, {}, name);
  if (twice != name_order_.end()) {
    throw std::invalid_argument(fmt::format("NormTree: two tensors have the name '{}'", name(*twice)));
  }
}

std::vector<NormNode> NormTree::nodes(std::span<const NormSpan> spans) const {
  std::vector<NormNode> nodes;
  for (const NormSpan& span : spans) {
    const int64_t blocks = tensors_.at(static_cast<size_t>(span.tensor)).block_count;
    int64_t begin = span.first_block, end = span.first_block + span.block_count;
    if (begin < 0 || span.block_count < 0 || end > blocks) {
      throw std::invalid_argument(
          fmt::format("NormTree::nodes(): a span has the blocks [{}, {}): expected blocks of a tensor with {} blocks",
                      begin, end, blocks));
    }
    if (begin == end) continue;
    const int32_t root = root_level(blocks);
    // The tree has no leaves after the last block. If the span ends there, extend it to the end of the root, so that
    // fewer and larger subtrees cover it.
    if (end == blocks) end = int64_t{1} << root;
    while (begin < end) {
      int32_t level = 0;
      while (level < root && begin % (int64_t{2} << level) == 0 && begin + (int64_t{2} << level) <= end) ++level;
      nodes.push_back({span.tensor, level, begin >> level});
      begin += int64_t{1} << level;
      if (begin >= blocks) break;
    }
  }
  return nodes;
}

LocalNormSums::LocalNormSums(const NormTree& tree, std::span<const NormSpan> spans) {
  for (const NormSpan& span : spans) {
    for (const NormNode& node : tree.nodes({&span, 1})) {
      const int64_t begin = first_block(node);
      const int64_t end = std::min(begin + (int64_t{1} << node.level), span.first_block + span.block_count);
      runs_.push_back({span.place + (begin - span.first_block), end - begin});
      nodes_.push_back(node);
    }
  }
}

void LocalNormSums::sums(const double* block_squares, std::span<double> values) const {
  if (values.size() != runs_.size())
    throw std::invalid_argument("LocalNormSums::sums(): values must have one element for each tree node in nodes()");
  for (size_t i = 0; i < runs_.size(); ++i)
    values[i] = leaf_tree_sum(block_squares + runs_[i].place, runs_[i].block_count);
}

/// Traverses the tree from the roots to the given tree nodes, and records the additions as steps.
class GlobalNormSum::Builder {
 public:
  Builder(const NormTree& tree, const std::vector<NormNode>& nodes) : tree_(tree), nodes_(nodes), order_(nodes.size()) {
    std::vector<int64_t> rank(tree.tensors().size());
    for (size_t i = 0; i < rank.size(); ++i) rank[static_cast<size_t>(tree.name_order()[i])] = static_cast<int64_t>(i);
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::ranges::sort(order_, {}, [&](size_t i) {
      return std::pair(rank.at(static_cast<size_t>(nodes_[i].tensor)), first_block(nodes_[i]));
    });
  }

  std::vector<Step> steps() {
    for (const int32_t tensor : tree_.name_order()) {
      blocks_ = tree_.tensors()[static_cast<size_t>(tensor)].block_count;
      if (blocks_ == 0) continue;
      visit({tensor, root_level(blocks_), 0});
      steps_.back().ends_tensor = tensor;
    }
    if (next_ != order_.size()) fail(nodes_[order_[next_]].tensor, "cover a block twice");
    return std::move(steps_);
  }

 private:
  void visit(const NormNode& node) {
    if (next_ < order_.size() && nodes_[order_[next_]] == node) {
      steps_.push_back({static_cast<int64_t>(order_[next_++]), 0, -1});
      return;
    }
    if (node.level == 0) fail(node.tensor, "do not cover every block");
    visit({node.tensor, node.level - 1, 2 * node.index});
    const NormNode right{node.tensor, node.level - 1, 2 * node.index + 1};
    if (first_block(right) >= blocks_) return;
    visit(right);
    ++steps_.back().merges;
  }

  [[noreturn]] void fail(int32_t tensor, const char* reason) const {
    throw std::invalid_argument(fmt::format("GlobalNormSum: the tree nodes of tensor '{}' {}",
                                            tree_.tensors()[static_cast<size_t>(tensor)].name, reason));
  }

  const NormTree& tree_;
  const std::vector<NormNode>& nodes_;
  std::vector<size_t> order_;
  size_t next_ = 0;
  int64_t blocks_ = 0;
  std::vector<Step> steps_;
};

GlobalNormSum::GlobalNormSum(const NormTree& tree, const std::vector<NormNode>& nodes)
    : steps_(Builder(tree, nodes).steps()), value_count_(nodes.size()), tensor_count_(tree.tensors().size()) {}

double GlobalNormSum::finish(std::span<const double> values, std::span<double> tensor_sums) const {
  if (values.size() != value_count_ || (!tensor_sums.empty() && tensor_sums.size() != tensor_count_)) {
    throw std::invalid_argument(
        "GlobalNormSum::finish(): values must have one element for each tree node, and tensor_sums must be empty or "
        "have one for each tensor");
  }
  std::ranges::fill(tensor_sums, 0.0);
  double stack[64], total = 0.0;  // the stack has at most one value for each level of the tree
  int top = 0;
  for (const Step& step : steps_) {
    stack[top++] = values[static_cast<size_t>(step.value)];
    for (int32_t i = 0; i < step.merges; ++i, --top) stack[top - 2] += stack[top - 1];
    if (step.ends_tensor < 0) continue;
    top = 0;
    total += stack[0];
    if (!tensor_sums.empty()) tensor_sums[static_cast<size_t>(step.ends_tensor)] = stack[0];
  }
  return total;
}

}  // namespace aliquot
