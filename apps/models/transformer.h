#pragma once
// The common part of the models: the residual stream, the token embedding and the head.

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/models/activation_arena.h"
#include "apps/models/backend.h"
#include "apps/models/model.h"
#include "apps/models/shape.h"
#include "apps/models/tensor_part.h"

namespace aliquot {

/// Options of a run that determine a model's memory and computation, in addition to its shape.
struct ModelOptions {
  int64_t batch = 1;
  int64_t sequence = 0;  // tokens in a sequence; 0: the shape's context
  /// Whether backward assigns gradients or adds to them, for all units except a token embedding tied to the head.
  GradientMode gradients = GradientMode::kAssign;
  /// The same for a token embedding tied to the head. Two backwards write its gradient. This value applies to the
  /// first, that of the head. The second always adds.
  GradientMode table_gradients = GradientMode::kAdd;
  bool keep_logits = true;                // false: backward recomputes the logits tile by tile
  DType compute = DType::kFloat32;        // type of parameters and matrix products: fp32, bf16 or fp16
  DType gradient_type = DType::kFloat32;  // type of parameter gradients: fp32 or bf16
  TensorGroup tensor = {};
  /// The longest sequence that set_decoding() accepts; 0: the model is not used for decoding.
  int64_t decode_positions = 0;
};

/// A dimension of a block that the ranks of a tensor group divide.
enum class DividedDimension : uint8_t { kHeads, kKvHeads, kHidden };

/// The buffers of a use that have several arrays: see UseMemory.
struct UseArenas {
  ActivationArena kept, scratch, weight_inputs;
};

/// The base class of Gpt2 and Llama. Other code uses only the interface Model. The residual stream and its gradient,
/// the statistics, the softmax and the loss are fp32. Other activations have the compute type.
///
/// The ranks of a tensor group divide heads, hidden elements and the vocabulary: see TensorPart. If they also divide
/// rows, each rank has only its rows of the residual stream, of its gradient, and of norms in blocks. The input of a
/// linear layer always has all rows. Collectives of blocks transfer elements of the compute type, except that sums are
/// fp32 if the compute type is fp16, whose range is small. The collectives of the embedding, of the loss and of the
/// head's gradient transfer fp32.
class Transformer : public Model {
 public:
  const std::vector<ModelUnit>& units() const override { return units_; }
  const std::vector<int>& uses() const override { return uses_; }
  ActivationSpec activations() const override { return activations_; }
  void set_memory(const UseMemory& memory) override;
  void set_batch(const TokenBatch& batch) override;
  void set_decoding(const DecodingPass& pass) override;
  double loss_sum() const override { return backend_.loss_sum(); }
  void stage_batch(int slot, const TokenBatch& batch) override;
  void select_batch(int slot) override { staged_tokens_ = backend_.select_batch(slot); }
  double loss_sum(int slot) const override { return backend_.loss_sum(slot); }
  std::span<const float> logits() const override { return logits_; }
  void set_loss_factor(float factor) override {
    loss_factor_ = factor;
    factor_on_gpu_ = backend_.stage_loss_factor(factor);
  }

 protected:
  /// Throws UsageError if the shape is invalid or the sequence is longer than the context. The backend must outlive the
  /// model.
  Transformer(const ModelShape& shape, const ModelOptions& options, Backend& backend);

  /// Declares one use of each unit, in order. If the head shares a unit with the token embedding, `head` is the index
  /// of that unit, and the last use is a second use of it. If the head has its own unit, `head` is -1. Computes the
  /// memory of each use with use_of() and allocate_use().
  void finish_declaration(int head);
  /// The properties of a use except the sizes that follow from allocate_use().
  virtual UseActivations use_of(int use) const = 0;
  /// Allocates the memory of a use: see ActivationArena. Runs before every use.
  virtual void allocate_use(int use, UseArenas& memory) = 0;
  /// Allocates the scratch that the blocks of both models need.
  void allocate_block_scratch(ActivationArena& scratch);
  /// Allocates block_data_. Call it after allocate_block_scratch(). `qkv` is the kept array of queries, keys and
  /// values, whose memory a split backward uses again.
  void allocate_block_data(ActivationArena& weight_inputs, Values qkv, bool norms_have_bias);
  void allocate_head(UseArenas& memory);
  int64_t stream_bytes() const { return stream_elements() * element_bytes(DType::kFloat32); }
  int64_t head_input_bytes() const { return all_stream_elements() * element_bytes(options_.compute); }

  ModelTensor table(std::vector<int64_t> shape, const Initializer& initial, Values& parameter, Values& gradient) const;
  ModelTensor tensor(std::string name, std::vector<int64_t> shape, const Initializer& initial, Values& parameter,
                     Values& gradient, const TensorDeclaration& over_tensor = {}) const;

  int64_t rows() const { return options_.batch * options_.sequence; }
  bool divides_rows() const { return options_.tensor.divides_rows(); }
  /// Whether the parameters other than those of adapters have gradients.
  bool trains_base() const { return !shape_.lora.exists(); }
  /// The elements of the residual stream for which a rank has memory: of its rows, and of all rows.
  int64_t stream_elements() const { return largest_.rows * shape_.width; }
  int64_t all_stream_elements() const { return stream_elements() * (divides_rows() ? options_.tensor.ranks : 1); }
  int64_t own_stream_elements() const { return own_.rows * shape_.width; }
  /// Returns the own rows of an array of all rows of the residual stream.
  Values own_rows_of(Values all) const { return all.from(own_.first_row * shape_.width); }
  int64_t hidden_elements() const { return rows() * own_.hidden; }
  /// The position of the first row in its sequence. It is 0 unless a cache has the earlier positions.
  int64_t first_position() const { return decoding_ ? decoding_->first_position() : 0; }
  bool fixed_leaves() const { return options_.tensor.fixed_leaves && trains_base(); }
  /// Whether sums over divided dimensions are added from parts, over leaves or over ranks.
  bool adds_parts() const { return fixed_leaves() || options_.tensor.ranks > 1; }
  bool adds() const { return options_.gradients == GradientMode::kAdd; }
  /// The shape of attention of this rank in the current use, whose window is window_.
  AttentionShape attention_shape() const { return attention_shape(own_); }
  AttentionShape largest_attention_shape() const { return attention_shape(largest_); }
  AttentionShape attention_shape(const TensorPart& part) const;

  // The collectives that the code of a use runs, in order. Without a tensor group, there are none.
  std::vector<UseCollective> block_collectives() const;
  std::vector<UseCollective> embedding_collectives() const;
  std::vector<UseCollective> position_collectives() const;
  std::vector<UseCollective> final_norm_collectives() const;
  std::vector<UseCollective> head_collectives() const;
  /// Runs a collective of the current use if there is a tensor group.
  void run(const char* collective) const;

  void allocate_embedding(ActivationArena& scratch);
  /// Allocates layer_scratch_ in a use that has no scratch of matrix products.
  void allocate_row_sum_scratch(ActivationArena& scratch);
  void embedding_forward(ConstValues of_tokens);
  void embedding_backward(Values d_table, bool add);
  Linear linear(ConstValues weight, ConstValues bias, int64_t inputs, int64_t outputs) const;
  /// The same for a layer of a block, whose operands may be fp8.
  Linear block_linear(ConstValues weight, ConstValues bias, int64_t inputs, int64_t outputs) const;
  float* input() const { return static_cast<float*>(memory_.input); }  // the residual stream before the current use
  float* output() const { return static_cast<float*>(memory_.output); }
  Values normed_input() const { return {memory_.input, options_.compute}; }
  Values normed_output() const { return {memory_.output, options_.compute}; }

  /// A norm of rows of the residual stream. Backward recomputes its output, because saving it would need as much memory
  /// as the input. `mean` is null for an RMS norm.
  struct Norm {
    const float* x = nullptr;
    float *mean = nullptr, *rstd = nullptr;
    ConstValues weight = {}, bias = {};
    int index = 0;  // among the norms of the use
  };
  void norm_forward(const Norm& norm, Values to);
  /// Computes the norm's output for all rows in normed_. `gather` is the name of the collective that gathers the rows.
  void norm_forward_of_all(const Norm& norm, const char* gather);
  /// Computes the final norm, and writes the rows of all ranks to the output of the use.
  void final_norm_forward(const Norm& norm);

  /// A linear layer of a block, to which an adapter may belong. The layer computes the outputs from `first_output` on.
  struct BlockLinear {
    Projection projection;
    Linear linear;
    int64_t first_output = 0;
  };
  /// Declares the adapters of a block as the last tensors of its unit.
  void declare_adapters(ModelUnit& unit, int64_t layer);
  /// Allocates the memory of a block's adapters.
  void allocate_adapters(UseArenas& memory);
  /// to = x * weight + bias, plus the output of the adapter, if there is one.
  void linear_forward(const BlockLinear& l, ConstValues x, Values to);
  /// before_gelu = x * weight + bias, plus the output of the adapter, and to = gelu(before_gelu). See
  /// Backend::linear_gelu_forward().
  void linear_gelu_forward(const BlockLinear& l, ConstValues x, Values before_gelu, Values to, bool needs_gelu);
  /// Repeats the part of linear_forward() whose result the adapter keeps for backward.
  void inner_forward(const BlockLinear& l, ConstValues x);
  /// The input of a layer whose output is added to the residual stream. The ranks divide its elements.
  struct StreamInput {
    ConstValues x;
    DividedDimension elements;
  };
  /// to = x * weight + bias + residual, plus the output of the adapter, if there is one. The collective `sum` adds over
  /// the tensor group.
  void add_to_stream(const BlockLinear& l, const StreamInput& x, const float* residual, float* to, const char* sum);

  /// What the current call computes: a whole backward, or one part of it. The backward of a block has the same code for
  /// all three. Each of its steps belongs to the input part, which reads values of parameters, or to the weights part,
  /// which writes gradients of parameters.
  enum class BackwardPart : uint8_t { kWhole, kInput, kWeights };
  bool in_input_part() const { return part_ != BackwardPart::kWeights; }
  bool in_weights_part() const { return part_ != BackwardPart::kInput; }

  /// Data of a block's backward that both parts access. A whole backward stores it in scratch. A split backward stores
  /// it in UseMemory::weight_inputs, because other uses overwrite scratch between the two parts.
  struct BlockData {
    Values wide;                              // rows x hidden elements, which the model defines
    Values mlp_gradient, attention_gradient;  // gradients of the outputs added to the stream, in the compute type
    Values qkv_gradient;                      // gradients of queries, keys and values
    float *norm_1_gradient = nullptr, *norm_2_gradient = nullptr;  // gradients of the norms' outputs
    Values normed_1, normed_2;                                     // outputs of the norms
    Values norm_1_weight, norm_1_bias;                             // copies of parameters, only if backward is split
    Values norm_2_weight, norm_2_bias;
  };

  // The steps of a backward. A step does nothing if it does not belong to part_. It does not compute the gradient of a
  // parameter without memory for its gradient, because that parameter is frozen.

  /// Call it before linear_backward_input() or input_gradient() of the same layer, also in an input part.
  void linear_backward_weights(const BlockLinear& l, ConstValues x, ConstValues from, Values d_weight, Values d_bias);
  void linear_backward_input(const BlockLinear& l, ConstValues from, Values to, bool add = false);
  /// Assigns the gradient of before_gelu to `to`, where x = gelu(before_gelu).
  void linear_gelu_backward_input(const BlockLinear& l, ConstValues from, ConstValues before_gelu, Values to);
  /// A layer whose outputs the ranks divide, and the gradient of its outputs.
  struct OutputGradient {
    BlockLinear l;
    ConstValues from;
    DividedDimension outputs;
  };
  /// Assigns the gradient of the common input of the layers to `to`.
  void input_gradient(std::span<const OutputGradient> terms, float* to);
  /// Adds the gradient of the norm's input to gradient_. With add = false, assigns it to gradient_ instead. `from` is
  /// the gradient of the norm's output.
  /// With fixed leaves, finish_norm_gradients() must follow for all norms of the use.
  void norm_backward(const Norm& norm, const float* from, Values d_weight, Values d_bias, bool add = true);
  /// The gradients of a norm, and the sum that finish_norm_gradients() assigns or adds to them.
  struct NormGradient {
    const float* sum = nullptr;
    Values weight, bias;
    int64_t elements = 0;
  };
  NormGradient norm_gradient(int index, Values weight, Values bias) const {
    return {norm_sum(index), weight, bias, shape_.width};
  }
  /// Without fixed leaves, does nothing.
  void finish_norm_gradients(std::span<const NormGradient> gradients);
  void allocate_norm_sums(ActivationArena& scratch, int norms, bool has_qk_norms);
  void declare_norm_sums(std::vector<UseCollective>& to, UsePart part) const;
  void sum_head_norm_weights(const HeadNormsWeight& all, DividedDimension heads, float* to);
  float* norm_sums() const { return norm_sums_; }
  const LayerScratch& layer_scratch() const { return layer_scratch_; }
  void positions_backward_leaves(const Positions& all, Values d_table);
  void allocate_position_sums(ActivationArena& scratch);
  /// Returns the gradient of all rows of the residual stream in the compute type, at `to`.
  ConstValues gradient_for_products(Values to, const char* gather);
  /// Returns the norm's output of all rows for the gradients of weights, at `to`.
  ConstValues normed_for_products(const Norm& norm, Values to, const char* gather);
  /// Returns the address to which linear_backward_input() writes this rank's part of the gradient of a norm's output.
  /// sum_norm_gradient() then adds the parts of all ranks, and writes the sum to `to`.
  float* partial_norm_gradient(float* to) const { return options_.tensor.ranks == 1 ? to : normed_gradient_; }
  /// Adds the gradient of the norm's output over the tensor group, and writes this rank's rows to `to`.
  void sum_norm_gradient(float* to, const char* sum);
  /// Copies the parameters of the norms to block_data_, because the weights part recomputes the norms' outputs.
  void save_norms(const Norm& norm_1, const Norm& norm_2);

  /// Computes attention in the current use. With a cache, first copies the keys and values of `qkv` to it.
  void attend(ConstValues qkv, Values to, float* log_sums);

  /// Computes the loss from the input of the current use and the table of the head. While decoding, computes logits_.
  void forward_head(ConstValues table);
  /// Assigns the gradient of the head's input to gradient_. Assigns the gradient of the table to `d_table`. With `add`,
  /// adds the gradient of the table to the values in `d_table` instead.
  void backward_head(ConstValues table, Values d_table, bool add);

  ModelShape shape_;
  ModelOptions options_;
  TensorPart own_, largest_;  // the part of this rank, and the sizes of memory
  Backend& backend_;
  std::vector<ModelUnit> units_;
  StagedTokens staged_tokens_;
  BackwardPart part_ = BackwardPart::kWhole;
  int64_t layer_ = 0, window_ = 0;  // of the current use, if it is a block

  // Memory of the current use.
  UseMemory memory_;
  BlockData block_data_;
  float* gradient_ = nullptr;  // gradient of the residual stream
  Values normed_;              // output of a norm
  // Gradient of normed_ or of the output of attention; in the memory of normed_ if the compute type is fp32.
  float* normed_gradient_ = nullptr;
  Values wide_scratch_;
  float* attention_scratch_ = nullptr;

  struct Adapter {
    Values a, b;
  };
  using BlockAdapters = std::array<Adapter, kProjectionCount>;
  std::vector<BlockAdapters> adapters_, adapter_gradients_;  // of each block

 private:
  /// The values between the two products of an adapter, and their gradient.
  struct InnerValues {
    Values values, gradient;
  };

  Adapter adapter(const BlockLinear& l, const std::vector<BlockAdapters>& of) const;
  Linear inner_linear(const BlockLinear& l) const;
  Linear outer_linear(const BlockLinear& l) const;
  void adapter_forward(const BlockLinear& l, ConstValues x, Values to);
  void begin_batch(const TokenBatch& batch);
  void check_ids(std::span<const int32_t> ids, const std::string& what, int32_t least) const;
  LossShape loss_shape(const TensorPart& part) const;
  EmbeddingRows embedding() const;
  void set_extents(int64_t batch, int64_t sequence);
  AttentionShape attention_scratch_shape() const;
  void compute_logits(ConstValues table);
  UseCollective stream_sum(const char* name, UsePart part) const;
  UseCollective stream_gather(const char* name, UsePart part) const;
  void allocate_head_over_tensor(ActivationArena& scratch);
  int64_t product_scratch_elements() const;
  float* allocate_product_scratch(ActivationArena& scratch) const;
  void allocate_fp8_scratch(ActivationArena& scratch);
  /// Returns the layer for linear_backward_weights() and for linear_backward_input(), with the flags of Fp8Linear. Call
  /// the first one for all layers, in order. `is_computed`: whether the gradient of the weight is computed.
  Linear with_fp8_for_weights(const BlockLinear& l, bool is_computed);
  Linear with_fp8_for_input(const BlockLinear& l) const;
  void allocate_stream_leaves(ActivationArena& scratch);
  void forward_leaves(Linear linear, ConstValues x, DividedDimension inputs);
  int64_t norm_elements() const { return (shape_.family == ModelFamily::kGpt2 ? 2 : 1) * shape_.width; }
  int64_t summed_norm_elements() const;
  float* norm_sum(int index) const {
    return norm_sums_ == nullptr ? nullptr : norm_sums_ + qk_sums_count_ + index * norm_elements();
  }
  void sum_norm_weights(const Norm& norm, const float* from);
  LossShape largest_leaf_loss() const;
  LossForward loss_of_leaf(const LossForward& all, const TensorLeaf& leaf, int64_t index) const;
  void head_statistics_of_leaves(const LossForward& loss);
  void head_backward_of_leaves(const LossBackward& all);

  // The extents of a micro-batch. While decoding, options_ has those of the current pass.
  int64_t batch_ = 0, sequence_ = 0;
  std::optional<DecodingPass> decoding_;
  std::vector<float> logits_;
  float* logits_buffer_ = nullptr;  // one row of logits, in scratch of the head
  std::vector<int> uses_;
  ActivationSpec activations_;
  LossBuffers loss_;
  Values rounded_gradient_;  // gradient_ of all rows in the compute type, if gradient_ is not
  Values sums_;              // partial sums over the tensor group, in the memory of normed_ or normed_gradient_
  int64_t normed_offset_bytes_ = 0, sums_offset_bytes_ = 0, rounded_gradient_offset_bytes_ = 0;  // in scratch of blocks
  float* product_scratch_ = nullptr;
  LayerScratch layer_scratch_;  // for sums over rows; empty in uses without such memory
  Fp8Scratch fp8_;
  bool has_fp8_input_ = false;                                // of the last layer in a backward
  std::array<bool, kProjectionCount> shares_fp8_gradient_{};  // of each layer
  float* all_rows_ = nullptr;  // of the residual stream, in uses of embedding and head, if ranks divide rows
  int64_t all_rows_offset_bytes_ = 0, loss_parts_offset_bytes_ = 0;
  SplitParts loss_parts_;
  // With fixed leaves: the leaves of this rank, and scratch of sums.
  std::vector<TensorLeaf> leaves_;
  std::vector<LeafRange> row_leaves_;
  float *leaf_scratch_ = nullptr, *norm_sums_ = nullptr, *norm_leaf_scratch_ = nullptr, *position_sums_ = nullptr;
  int64_t norm_sums_offset_bytes_ = 0, norm_sums_count_ = 0, qk_sums_count_ = 0;
  float loss_factor_ = 1.0f;
  const float* factor_on_gpu_ = nullptr;             // only on GPUs
  std::array<InnerValues, kProjectionCount> inner_;  // of the current use
};

}  // namespace aliquot
