// The parts of Transformer that run collectives of a tensor group.
#include <array>

#include "apps/models/transformer.h"

namespace aliquot {

// Without a tensor group, the code may run without an engine, so there is no object that runs collectives.
void Transformer::run(const char* collective) const {
  if (options_.tensor.ranks > 1) memory_.run(collective);
}

/// A sum of rows of the residual stream, at sums_.
UseCollective Transformer::stream_sum(const char* name, UsePart part) const {
  return {.name = name,
          .kind = divides_rows() ? CollectiveKind::kScatterSum : CollectiveKind::kSum,
          .part = part,
          .buffer = UseBuffer::kScratch,
          .offset_bytes = sums_offset_bytes_,
          .rows = rows(),
          .row_elements = shape_.width,
          .dtype = sums_.type};
}

/// Gathers rows of the residual stream in the compute type, at normed_.
UseCollective Transformer::stream_gather(const char* name, UsePart part) const {
  UseCollective gather = stream_sum(name, part);
  gather.kind = CollectiveKind::kGather;
  gather.offset_bytes = normed_offset_bytes_;
  gather.dtype = options_.compute;
  return gather;
}

std::vector<UseCollective> Transformer::block_collectives() const {
  std::vector<UseCollective> all;
  if (options_.tensor.ranks == 1) return all;
  const auto sum = [&](const char* name, UsePart part) { all.push_back(stream_sum(name, part)); };
  const auto gather = [&](const char* name, UsePart part) {
    if (divides_rows()) all.push_back(stream_gather(name, part));
  };
  gather("attention input", UsePart::kForward);
  sum("attention output", UsePart::kForward);
  gather("mlp input", UsePart::kForward);
  sum("mlp output", UsePart::kForward);
  all.back().in_recompute = false;
  for (const auto& [output_gradient, input, input_gradient] :
       {std::array{"mlp output gradient", "mlp input again", "mlp input gradient"},
        std::array{"attention output gradient", "attention input again", "attention input gradient"}}) {
    gather(output_gradient, UsePart::kBackward);
    if (divides_rows()) all.back().offset_bytes = rounded_gradient_offset_bytes_;
    gather(input, UsePart::kBackward);
    sum(input_gradient, UsePart::kBackward);
  }
  declare_norm_sums(all, UsePart::kBackwardWeights);
  return all;
}

std::vector<UseCollective> Transformer::embedding_collectives() const {
  if (options_.tensor.ranks == 1) return {};
  UseCollective output = stream_sum("embedding", UsePart::kForward);
  output.offset_bytes = 0;
  output.dtype = DType::kFloat32;
  if (!divides_rows()) {
    output.buffer = UseBuffer::kOutput;
    return {output};
  }
  output.offset_bytes = all_rows_offset_bytes_;
  if (!trains_base()) return {output};
  UseCollective gradient = output;
  gradient.name = "embedding gradient";
  gradient.kind = CollectiveKind::kGather;
  gradient.part = UsePart::kBackward;
  return {output, gradient};
}

std::vector<UseCollective> Transformer::final_norm_collectives() const {
  if (!divides_rows()) return {};
  UseCollective output = stream_gather("head input", UsePart::kForward);
  output.buffer = UseBuffer::kOutput;
  output.offset_bytes = 0;
  std::vector<UseCollective> all{output};
  declare_norm_sums(all, UsePart::kBackward);
  return all;
}

std::vector<UseCollective> Transformer::head_collectives() const {
  if (options_.tensor.ranks == 1) return {};
  const UseCollective loss{.name = "loss",
                           .kind = CollectiveKind::kGather,
                           .part = UsePart::kForward,
                           .buffer = UseBuffer::kScratch,
                           .offset_bytes = loss_parts_offset_bytes_,
                           .rows = options_.tensor.ranks,
                           .row_elements = loss_parts_.count / options_.tensor.ranks * split_part_elements(rows())};
  UseCollective gradient = stream_sum("head input gradient", UsePart::kBackward);
  gradient.dtype = DType::kFloat32;
  gradient.buffer = divides_rows() ? UseBuffer::kScratch : UseBuffer::kBackward;
  gradient.offset_bytes = divides_rows() ? all_rows_offset_bytes_ : 0;
  return {loss, gradient};
}

void Transformer::allocate_embedding(ActivationArena& scratch) {
  if (!divides_rows()) return;
  all_rows_offset_bytes_ = scratch.used_bytes();
  all_rows_ = scratch.allocate(all_stream_elements());
}

void Transformer::allocate_head_over_tensor(ActivationArena& scratch) {
  if (!adds_parts()) return;
  loss_parts_offset_bytes_ = scratch.used_bytes();
  const int parts = fixed_leaves() ? kTensorLeaves : options_.tensor.ranks;
  loss_parts_ = {parts, scratch.allocate(parts * split_part_elements(rows()))};
  allocate_embedding(scratch);
}

void Transformer::embedding_forward(ConstValues table) {
  backend_.embedding_forward(embedding(), table, divides_rows() ? all_rows_ : output());
  run("embedding");
  if (divides_rows()) backend_.convert(output(), own_rows_of(all_rows_), own_stream_elements());
}

void Transformer::embedding_backward(Values d_table, bool add) {
  if (!trains_base()) return;
  if (divides_rows()) {
    backend_.convert(own_rows_of(all_rows_), gradient_, own_stream_elements());
    run("embedding gradient");
  }
  backend_.embedding_backward(embedding(), divides_rows() ? all_rows_ : gradient_, d_table, add);
}

void Transformer::norm_forward_of_all(const Norm& norm, const char* gather) {
  norm_forward(norm, own_rows_of(normed_));
  if (divides_rows()) run(gather);
}

void Transformer::final_norm_forward(const Norm& norm) {
  norm_forward(norm, own_rows_of(normed_output()));
  if (divides_rows()) run("head input");
}

/// Only one rank adds the bias, before the sum. Each rank adds the residual to its rows, after the sum.
void Transformer::add_to_stream(const BlockLinear& l, const StreamInput& x, const float* residual, float* to,
                                const char* sum) {
  if (!adds_parts()) {
    backend_.linear_forward(l.linear, x.x, residual, to);
    return adapter_forward(l, x.x, to);
  }
  BlockLinear partial = l;
  if (options_.tensor.rank != 0) partial.linear.bias = nullptr;
  if (fixed_leaves()) {
    forward_leaves(partial.linear, x.x, x.elements);
  } else {
    linear_forward(partial, x.x, sums_);
  }
  run(sum);
  backend_.positions_forward({own_.rows, rows(), shape_.width, rows(), own_.first_row}, sums_, residual, to);
}

ConstValues Transformer::gradient_for_products(Values to, const char* gather) {
  if (!in_input_part()) return to;
  if (divides_rows()) {
    backend_.convert(own_rows_of(rounded_gradient_), gradient_, own_stream_elements());
    run(gather);
    if (to.data != rounded_gradient_.data) backend_.convert(to, rounded_gradient_, rows() * shape_.width);
  } else if (to.data != gradient_) {  // in fp32, the products of a whole backward read the gradient itself
    backend_.convert(to, gradient_, own_stream_elements());
  }
  return to;
}

/// If ranks divide rows, the input part gathers the norm's output, because a gather in the weights part would delay it.
/// A split backward therefore saves the output.
ConstValues Transformer::normed_for_products(const Norm& norm, Values to, const char* gather) {
  if (!divides_rows()) {
    if (in_weights_part()) norm_forward(norm, to);
    return to;
  }
  if (!in_input_part()) return to;
  norm_forward_of_all(norm, gather);
  if (to.data != normed_.data) backend_.convert(to, normed_, rows() * shape_.width);
  return to;
}

void Transformer::sum_norm_gradient(float* to, const char* sum) {
  if (options_.tensor.ranks == 1 || !in_input_part()) return;
  if (sums_.data != normed_gradient_) backend_.convert(sums_, normed_gradient_, rows() * shape_.width);
  run(sum);
  const Values own = own_rows_of(sums_);
  if (own.data != to) backend_.convert(to, own, own_stream_elements());
}

void Transformer::forward_head(ConstValues table) {
  if (decoding_) {
    compute_logits(table);
    return run("loss");  // the ranks run all collectives of a use, and no code reads the result of this one
  }
  const LossForward loss{loss_shape(own_), normed_input(), table, staged_tokens_.targets, loss_};
  if (!adds_parts()) return backend_.loss_forward(loss);
  if (fixed_leaves()) {
    head_statistics_of_leaves(loss);
  } else {
    backend_.loss_statistics(loss, loss_parts_.statistics + options_.tensor.rank * split_part_elements(rows()));
  }
  run("loss");
  backend_.loss_of_parts(loss, loss_parts_);
}

void Transformer::backward_head(ConstValues table, Values d_table, bool add) {
  float* d_hidden = divides_rows() ? all_rows_ : gradient_;
  const LossBackward loss{loss_shape(own_), normed_input(), table, staged_tokens_.targets, loss_, loss_factor_,
                          d_hidden,         d_table,        add,   factor_on_gpu_};
  if (fixed_leaves()) {
    head_backward_of_leaves(loss);
  } else {
    backend_.loss_backward(loss);
  }
  run("head input gradient");
  if (divides_rows()) backend_.convert(gradient_, own_rows_of(all_rows_), own_stream_elements());
}

}  // namespace aliquot
