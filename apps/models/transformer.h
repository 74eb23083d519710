#pragma once
// What the models have in common: a stream of rows that units read and write, tokens at its start, a head at its end.

#include <vector>

#include "apps/models/activation_arena.h"
#include "apps/models/backend.h"
#include "apps/models/model.h"
#include "apps/models/shape.h"

namespace aliquot {

/// What a run asks of a model besides its shape.
struct ModelOptions {
  int64_t batch = 1;
  int64_t sequence = 0;                               // 0: the context
  GradientMode gradients = GradientMode::kAssign;     // of all units but a table that is used twice
  GradientMode table_gradients = GradientMode::kAdd;  // of that
  bool keep_logits = true;                            // else one tile of the vocabulary at a time, twice
  DType compute = DType::kFloat32;                    // what parameters are read in, or bf16 or fp16
  DType gradient_type = DType::kFloat32;              // what gradients are written in, or bf16
};

/// The residual stream and its gradient, statistics, softmax and loss are fp32; what lies between products is of the
/// type that is computed in. Not for use beyond the models themselves.
class Transformer : public Model {
 public:
  const std::vector<ModelUnit>& units() const override { return units_; }
  const std::vector<int>& uses() const override { return uses_; }
  ActivationSpec activations() const override { return activations_; }
  void set_memory(const UseMemory& memory) override;
  void set_batch(const TokenBatch& batch) override;
  double loss_sum() const override { return backend_.loss_sum(); }
  void set_loss_factor(float factor) override { loss_factor_ = factor; }

 protected:
  /// Throws UsageError when the shape or the sequence does not fit. The backend must outlive the model.
  Transformer(const ModelShape& shape, const ModelOptions& options, Backend& backend);

  /// Gives every unit a use in turn, and the head the use `head` after them, if that is not a unit of its own (-1); asks
  /// use_of() and take() what they need.
  void finish_declaration(int head);
  /// What a use is like, but for the bytes that take() takes.
  virtual UseActivations use_of(int use) const = 0;
  /// Takes what the use keeps, and what it computes in: see ActivationArena. Runs before every use.
  virtual void take(int use, ActivationArena& kept, ActivationArena& scratch) = 0;
  /// `wide_elements`: of the widest array between two products of a block.
  void allocate_block_scratch(ActivationArena& scratch, int64_t wide_elements);
  void allocate_head(ActivationArena& kept, ActivationArena& scratch);
  int64_t stream_bytes() const { return stream_elements() * element_bytes(DType::kFloat32); }
  int64_t normed_bytes() const { return stream_elements() * element_bytes(options_.compute); }

  ModelTensor table(std::vector<int64_t> shape, const Initializer& initial, Values& parameter, Values& gradient) const;
  ModelTensor tensor(const char* name, std::vector<int64_t> shape, const Initializer& initial, Values& parameter,
                     Values& gradient) const;

  int64_t rows() const { return options_.batch * options_.sequence; }
  int64_t stream_elements() const { return rows() * shape_.width; }
  bool adds() const { return options_.gradients == GradientMode::kAdd; }
  AttentionShape attention_shape() const;
  Embedding embedding() const;
  Linear linear(ConstValues weight, ConstValues bias, int64_t inputs, int64_t outputs) const;
  /// The stream's gradient as products take it.
  ConstValues gradient_for_products();
  float* input() const { return static_cast<float*>(memory_.input); }  // of the stream
  float* output() const { return static_cast<float*>(memory_.output); }
  Values normed_input() const { return {memory_.input, options_.compute}; }
  Values normed_output() const { return {memory_.output, options_.compute}; }

  /// A norm of the stream's rows; the output is made again for backward, which costs a pass over memory, and to keep it as
  /// much as its input. `mean` is null where it is an RMS norm.
  struct Norm {
    const float* x = nullptr;
    float *mean = nullptr, *rstd = nullptr;
    ConstValues weight = {}, bias = {};
  };
  void norm_forward(const Norm& norm, Values to);
  /// gradient_ += or = the gradient of its input, given that of its output.
  void norm_backward(const Norm& norm, const float* from, Values d_weight, Values d_bias, bool add = true);

  /// From and to where the use at work has its input and output.
  void forward_head(ConstValues table);
  /// Assigns gradient_.
  void backward_head(ConstValues table, Values d_table, bool add);

  ModelShape shape_;
  ModelOptions options_;
  Backend& backend_;
  std::vector<ModelUnit> units_;
  StagedTokens staged_tokens_;

  // Of the use at work. Whole rows: of the stream or, to and from the last norm's output, of what is normed; the stream's
  // gradient; scratch.
  UseMemory memory_;
  float* gradient_ = nullptr;
  Values normed_;                     // the output of a norm, width elements a row
  float* normed_gradient_ = nullptr;  // the gradient of such; in fp32, the same memory
  Values wide_scratch_;
  float* attention_scratch_ = nullptr;

 private:
  LossShape loss_shape() const;
  float* allocate_product_scratch(ActivationArena& scratch) const;

  std::vector<int> uses_;
  ActivationSpec activations_;
  LossBuffers loss_;
  Values rounded_gradient_;  // of 16 bits alone
  float* product_scratch_ = nullptr;
  float loss_factor_ = 1.0f;
};

}  // namespace aliquot
