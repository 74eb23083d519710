#pragma once
// The norm of all gradients, summed in a fixed tree, so that its bits do not depend on the sharding.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace aliquot {

/// A tensor. Its blocks are leaves of the tree.
struct NormTensor {
  std::string name;
  int64_t block_count = 0;  // number of elements / kBlockElements, rounded up
};

/// Consecutive blocks of one tensor, and the index of their sums of squares.
struct NormSpan {
  int32_t tensor;  // index in NormTree::tensors()
  int64_t first_block, block_count;
  /// Index of the sum of first_block in the array for LocalNormSums::sums(). The sums of the other blocks follow it.
  int64_t place;
};

/// A tree node. Its subtree consists of the existing blocks in [index << level, (index + 1) << level) of a tensor.
struct NormNode {
  int32_t tensor;
  int32_t level;
  int64_t index;

  friend bool operator==(const NormNode&, const NormNode&) = default;
};

/// The tree. Within a tensor, the value of a tree node is the sum of its left and its right child, in double. A child
/// without blocks is left out. The root is the lowest tree node that contains all blocks. The roots of the tensors are
/// added to 0 one after another, in bytewise order of the tensors' names. A tensor without blocks contributes 0.
class NormTree {
 public:
  /// Throws std::invalid_argument if two tensors have the same name.
  explicit NormTree(std::vector<NormTensor> tensors);

  const std::vector<NormTensor>& tensors() const { return tensors_; }
  const std::vector<int32_t>& name_order() const { return name_order_; }

  /// Returns the largest subtrees within the spans: at most 2 log2(blocks) + 1 for each span.
  std::vector<NormNode> nodes(std::span<const NormSpan> spans) const;

 private:
  std::vector<NormTensor> tensors_;
  std::vector<int32_t> name_order_;
};

/// The partial sums of one rank. The subtrees are computed once from the rank's blocks. Each step only computes values.
class LocalNormSums {
 public:
  LocalNormSums(const NormTree& tree, std::span<const NormSpan> spans);

  /// The blocks of one tree node: the index of the first one in the array of block sums, and their number.
  struct Run {
    int64_t place, block_count;
  };

  const std::vector<NormNode>& nodes() const { return nodes_; }
  /// The blocks of each tree node in nodes().
  const std::vector<Run>& runs() const { return runs_; }
  /// Sets values[i] to the sum over nodes()[i]. `block_squares` has the sums of squares of blocks, at the indices in
  /// NormSpan::place. Allocates nothing.
  void sums(const double* block_squares, std::span<double> values) const;

 private:
  std::vector<NormNode> nodes_;
  std::vector<Run> runs_;
};

/// Combines the partial sums of all ranks. Every rank computes the same value.
class GlobalNormSum {
 public:
  /// `nodes` are the tree nodes of all ranks, in the order of their values. They must cover each block of each tensor
  /// exactly once. Otherwise throws std::invalid_argument with the name of the tensor.
  GlobalNormSum(const NormTree& tree, const std::vector<NormNode>& nodes);

  /// Returns the total sum of squares. `values` has one value for each tree node. If `tensor_sums` is not empty, it
  /// receives the sum of each tensor. Allocates nothing.
  double finish(std::span<const double> values, std::span<double> tensor_sums = {}) const;

 private:
  class Builder;
  /// Pushes a value on a stack. Then, `merges` times, pops the top and adds it to the next value.
  struct Step {
    int64_t value;
    int32_t merges;
    int32_t ends_tensor;  // the tensor that is complete after this step, or -1
  };
  std::vector<Step> steps_;
  size_t value_count_, tensor_count_;
};

}  // namespace aliquot
