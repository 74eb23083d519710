// The sums of Transformer over fixed leaves: see TensorGroup::fixed_leaves.
#include <algorithm>

#include "apps/models/leaf_sums.h"
#include "apps/models/transformer.h"

namespace aliquot {
namespace {

LeafRange range_of(const TensorLeaf& leaf, DividedDimension dimension, int64_t head_width) {
  switch (dimension) {
    case DividedDimension::kHeads: return {leaf.heads.first * head_width, leaf.heads.count * head_width};
    case DividedDimension::kKvHeads: return {leaf.kv_heads.first * head_width, leaf.kv_heads.count * head_width};
    case DividedDimension::kHidden: return leaf.hidden;
  }
  return {};
}

int64_t round_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

}  // namespace

void Transformer::allocate_stream_leaves(ActivationArena& scratch) {
  leaf_scratch_ = scratch.allocate(leaf_scratch_elements(std::max<size_t>(leaves_.size(), 1), rows() * shape_.width));
}

/// Assigns x * weight + bias, summed over the leaves of this rank, to sums_. The first leaf that is not empty adds the
/// bias. It is on rank 0 for every number of ranks.
void Transformer::forward_leaves(Linear linear, ConstValues x, DividedDimension inputs) {
  const LeafSum sum{sums_.fp32(), rows() * shape_.width, leaf_scratch_};
  sum_leaves(backend_, sum, 0, std::ssize(leaves_), [&](int64_t i, float* to) {
    const LeafRange range = range_of(leaves_[static_cast<size_t>(i)], inputs, shape_.head_width());
    if (range.count == 0) return backend_.clear(to, sum.elements);
    backend_.linear_forward(linear.with_inputs(range.first, range.count), x.from(range.first), nullptr, to);
    linear.bias = nullptr;
  });
}

void Transformer::input_gradient(std::span<const OutputGradient> terms, float* to) {
  if (!in_input_part()) return;
  if (!fixed_leaves()) {
    for (const OutputGradient& term : terms) linear_backward_input(term.l, term.from, to, &term != terms.data());
    return;
  }
  const LeafSum sum{to, rows() * shape_.width, leaf_scratch_};
  sum_leaves(backend_, sum, 0, std::ssize(leaves_), [&](int64_t i, float* leaf) {
    bool add = false;
    for (const OutputGradient& term : terms) {
      const LeafRange range = range_of(leaves_[static_cast<size_t>(i)], term.outputs, shape_.head_width());
      if (range.count == 0) continue;
      const Linear part = term.l.linear.with_outputs(range.first, range.count);
      backend_.linear_backward_input(part, term.from.from(range.first), leaf, add);
      add = true;
    }
    if (!add) backend_.clear(leaf, sum.elements);
  });
}

/// The sums of the gradients of norms are in scratch: first those of the weights of QK norms, then weight and bias of
/// the norms of the use.
void Transformer::allocate_norm_sums(ActivationArena& scratch, int norms, bool has_qk_norms) {
  if (!fixed_leaves()) return;
  // A collective may write to full parts of all ranks, which must not reach the other sums.
  qk_sums_count_ = has_qk_norms ? round_up(2 * shape_.head_width(), kTensorLeaves) : 0;
  norm_sums_count_ = qk_sums_count_ + norms * norm_elements();
  norm_sums_offset_bytes_ = scratch.used_bytes();
  norm_sums_ = scratch.allocate(round_up(norm_sums_count_, kTensorLeaves));
  norm_leaf_scratch_ =
      scratch.allocate(leaf_scratch_elements(kTensorLeaves, std::max(norm_elements(), shape_.head_width())));
}

/// If ranks do not divide rows, each rank has the full gradients of norms, and only those of QK norms are sums over
/// heads.
int64_t Transformer::summed_norm_elements() const {
  if (!fixed_leaves() || options_.tensor.ranks == 1) return 0;
  return divides_rows() ? norm_sums_count_ : qk_sums_count_;
}

void Transformer::declare_norm_sums(std::vector<UseCollective>& to, UsePart part) const {
  if (summed_norm_elements() == 0) return;
  to.push_back({.name = "norm gradients",
                .kind = CollectiveKind::kSum,
                .part = part,
                .buffer = UseBuffer::kScratch,
                .offset_bytes = norm_sums_offset_bytes_,
                .rows = summed_norm_elements(),
                .row_elements = 1});
}

void Transformer::sum_norm_weights(const Norm& norm, const float* from) {
  const int64_t width = shape_.width;
  const LeafSum sum{norm_sum(norm.index), norm_elements(), norm_leaf_scratch_};
  sum_leaves(backend_, sum, 0, std::ssize(row_leaves_), [&](int64_t i, float* to) {
    const auto [first, count] = row_leaves_[static_cast<size_t>(i)];
    if (count == 0) return backend_.clear(to, sum.elements);
    backend_.layer_norm_backward_weights({.x = norm.x + first * width,
                                          .mean = norm.mean == nullptr ? nullptr : norm.mean + first,
                                          .rstd = norm.rstd + first,
                                          .from = from + first * width,
                                          .weight = to,
                                          .bias = norm.mean == nullptr ? nullptr : to + width,
                                          .rows = count,
                                          .width = width,
                                          .scratch = layer_scratch_});
  });
}

void Transformer::finish_norm_gradients(std::span<const NormGradient> gradients) {
  if (!fixed_leaves() || !in_weights_part()) return;
  if (summed_norm_elements() > 0) run("norm gradients");
  for (const NormGradient& of : gradients) {
    const int64_t width = of.elements;
    backend_.sum_columns({of.weight, of.sum, 1, width, 0, width, adds()});
    if (of.bias.data != nullptr) backend_.sum_columns({of.bias, of.sum + width, 1, width, 0, width, adds()});
  }
}

void Transformer::sum_head_norm_weights(const HeadNormsWeight& all, DividedDimension heads, float* to) {
  const LeafSum sum{to, all.head_width, norm_leaf_scratch_};
  sum_leaves(backend_, sum, 0, std::ssize(leaves_), [&](int64_t i, float* leaf) {
    const LeafRange range = range_of(leaves_[static_cast<size_t>(i)], heads, 1);
    if (range.count == 0) return backend_.clear(leaf, sum.elements);
    HeadNormsWeight part = all;
    part.x = all.x.from(range.first * all.head_width);
    part.gradient = all.gradient.from(range.first * all.head_width);
    part.rstd = all.rstd + range.first;
    part.rstd_stride = all.heads;
    part.heads = range.count;
    part.to = leaf;
    backend_.head_norms_backward_weight(part);
  });
}

/// Adds the gradients of positions over the leaves of the rows, and then over the ranks.
void Transformer::positions_backward_leaves(const Positions& all, Values d_table) {
  const int64_t elements = all.sequence * all.width;
  const LeafSum sum{position_sums_, elements, position_sums_ + round_up(elements, kTensorLeaves)};
  sum_leaves(backend_, sum, 0, std::ssize(row_leaves_), [&](int64_t i, float* to) {
    const auto [first, count] = row_leaves_[static_cast<size_t>(i)];
    const Positions part{count, all.sequence, all.width, all.sequence, all.first_row + first};
    backend_.positions_backward(part, gradient_ + first * all.width, to, false);
  });
  if (divides_rows()) run("position gradients");
  backend_.positions_backward({all.sequence, all.sequence, all.width, all.context, 0}, position_sums_, d_table, adds());
}

void Transformer::allocate_position_sums(ActivationArena& scratch) {
  if (!fixed_leaves()) return;
  const int64_t elements = options_.sequence * shape_.width;
  position_sums_ = scratch.allocate(round_up(elements, kTensorLeaves) + leaf_scratch_elements(kTensorLeaves, elements));
}

std::vector<UseCollective> Transformer::position_collectives() const {
  if (!fixed_leaves() || !divides_rows()) return {};
  return {{.name = "position gradients",
           .kind = CollectiveKind::kSum,
           .part = UsePart::kBackward,
           .buffer = UseBuffer::kScratch,
           .rows = options_.sequence * shape_.width,
           .row_elements = 1}};
}

/// The part of the head that computes the logits of one leaf. Each leaf has its columns of the logits that forward
/// keeps, or memory of its own for them, and its own part of the maxima of their tiles.
LossForward Transformer::loss_of_leaf(const LossForward& all, const TensorLeaf& leaf, int64_t index) const {
  LossForward part = all;
  part.shape.entries = leaf.entries.count;
  part.shape.first_entry = all.shape.first_entry + leaf.entries.first;
  part.table = all.table.from(leaf.entries.first * shape_.width);
  if (all.shape.keep_logits) {
    const bool separate = all.shape.row_multiple != 0;
    const int64_t offset = separate ? index * largest_leaf_loss().logits_elements() : leaf.entries.first;
    part.buffers.logits = all.buffers.logits.from(offset);
  }
  if (all.buffers.tile_maxima != nullptr) part.buffers.tile_maxima += index * rows() * largest_leaf_loss().tile_count();
  return part;
}

void Transformer::head_statistics_of_leaves(const LossForward& loss) {
  const auto count = std::ssize(leaves_);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t part = options_.tensor.rank * count + i;
    backend_.loss_statistics(loss_of_leaf(loss, leaves_[static_cast<size_t>(i)], i),
                             loss_parts_.statistics + part * split_part_elements(rows()));
  }
}

void Transformer::head_backward_of_leaves(const LossBackward& all) {
  const LeafSum sum{all.d_hidden, rows() * shape_.width, leaf_scratch_};
  const LossForward forward{all.shape, all.hidden, all.table, all.targets, all.buffers};
  sum_leaves(backend_, sum, 0, std::ssize(leaves_), [&](int64_t i, float* to) {
    const TensorLeaf& leaf = leaves_[static_cast<size_t>(i)];
    if (leaf.entries.count == 0) return backend_.clear(to, sum.elements);
    const LossForward own = loss_of_leaf(forward, leaf, i);
    LossBackward part = all;
    part.shape = own.shape;
    part.table = own.table;
    part.buffers = own.buffers;
    part.d_hidden = to;
    part.d_table = all.d_table.from(leaf.entries.first * shape_.width);
    backend_.loss_backward(part);
  });
}

}  // namespace aliquot
