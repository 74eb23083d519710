#pragma once
// The norm of all gradients as one fixed tree, so that it has the same bits however the gradients are cut.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace aliquot {

/// A tensor as the tree sees it: its blocks are its leaves.
struct NormTensor {
  std::string name;
  int64_t block_count = 0;  // its elements / kBlockElements, rounded up
};

/// Blocks of one tensor that lie somewhere together, and where their sums of squares are found.
struct NormSpan {
  int32_t tensor;  // index in the tree's tensors
  int64_t first_block, block_count;
  int64_t place;  // of first_block's sum in the array handed to LocalNormSums::sums; the others follow it
};

/// An aligned subtree: the blocks [index << level, (index + 1) << level) of a tensor, those beyond its end missing.
struct NormNode {
  int32_t tensor;
  int32_t level;
  int64_t index;

  friend bool operator==(const NormNode&, const NormNode&) = default;
};

/// The tree. Within a tensor: a node is its left child plus its right child, in double, a child with no blocks counting
/// as absent; the root is the least level that holds all blocks. The tensors' roots are added one after the other in
/// the order of their names, bytewise, from 0. A tensor without blocks is 0.
class NormTree {
 public:
  /// Throws std::invalid_argument when two tensors share a name.
  explicit NormTree(std::vector<NormTensor> tensors);

  const std::vector<NormTensor>& tensors() const { return tensors_; }
  const std::vector<int32_t>& name_order() const { return name_order_; }

  /// The largest subtrees that lie in the spans: at most 2 log2(blocks) + 1 a span.
  std::vector<NormNode> nodes(std::span<const NormSpan> spans) const;

 private:
  std::vector<NormTensor> tensors_;
  std::vector<int32_t> name_order_;
};

/// One holder's part: fixed by where its blocks lie, computed once; then only values move.
class LocalNormSums {
 public:
  LocalNormSums(const NormTree& tree, std::span<const NormSpan> spans);

  const std::vector<NormNode>& nodes() const { return nodes_; }
  /// values[i] = the sum over nodes()[i], from block_squares() as the reduce left them. Allocates nothing.
  void sums(const double* block_squares, std::span<double> values) const;

 private:
  struct Run {
    int64_t place, block_count;
    int32_t level;
  };
  std::vector<NormNode> nodes_;
  std::vector<Run> runs_;
};

/// Puts all holders' values together. The same number of bits goes in and the same double comes out on every holder.
class GlobalNormSum {
 public:
  /// `nodes`: of all holders, in the order their values will come in; together they tile every tensor exactly once,
  /// else std::invalid_argument names the tensor.
  GlobalNormSum(const NormTree& tree, const std::vector<NormNode>& nodes);

  /// The sum of squares over everything, from one value a node. `tensor_sums`, if not empty, gets each tensor's own.
  /// Allocates nothing.
  double finish(std::span<const double> values, std::span<double> tensor_sums = {}) const;

 private:
  class Builder;
  /// Pushes a value, then `merges` times adds the top of the stack to what lies below it.
  struct Step {
    int64_t value;
    int32_t merges;
    int32_t ends_tensor;  // the tensor that is complete after this, or -1
  };
  std::vector<Step> steps_;
  size_t value_count_, tensor_count_;
};

}  // namespace aliquot
