#pragma once
// The interface of the reference models. A model declares units of tensors and the order in which it uses them. It does
// not own parameters, gradients or activations: the trainer sets the pointers to them.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/models/decoding.h"
#include "apps/models/tensor_part.h"
#include "engine/plan/model_spec.h"
#include "kernels/formats/values.h"

namespace aliquot {

/// The distribution of a tensor's initial values. The code that uses the model generates the values.
struct Initializer {
  enum class Kind : uint8_t { kZero, kOne, kNormal, kUniform };
  Kind kind = Kind::kZero;
  /// The standard deviation of kNormal, or the bound of kUniform, whose values are in [-scale, scale). Means are 0.
  float scale = 0.0f;

  friend bool operator==(const Initializer&, const Initializer&) = default;
};

/// One tensor. `parameter` and `gradient` point to members of the model. The owner of the memory sets their `data`
/// before each use of the unit. The model sets their `type` when it is created.
struct ModelTensor {
  std::string name;  // without the name of the unit: "attn.c_attn.weight"
  std::vector<int64_t> shape;
  Initializer initial;
  Values* parameter = nullptr;
  Values* gradient = nullptr;
  bool is_table = false;               // an embedding or a head, which Muon does not update as a matrix
  bool trainable = true;               // false: it has no gradient, and `gradient` has no data
  TensorDeclaration over_tensor = {};  // how the ranks of a tensor group hold it. `shape` is the full shape.

  int64_t element_count() const {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return count;
  }
};

/// Tensors that are gathered together. A tensor's full name is `name + "." + tensor.name`: "h.0.attn.c_attn.weight".
struct ModelUnit {
  std::string name;
  /// With kAssign, the first backward of the unit in a pass assigns the gradient. If the unit has several uses, the
  /// backwards of its other uses add to the gradient. The gradient must keep its address and its contents until the
  /// last backward of the unit.
  GradientMode gradients = GradientMode::kAssign;
  std::vector<ModelTensor> tensors;
};

/// One micro-batch: `batch` sequences, one after the other. A target may be kIgnoredTarget. The spans must
/// stay valid until the next set_batch().
struct TokenBatch {
  std::span<const int32_t> tokens;
  std::span<const int32_t> targets;
};

/// The model of one rank. Uses are numbered in the order of forward; backward runs each use once, from last to first.
/// Backward runs in one call, or in two parts: backward_input() of a use, and later backward_weights() of the same use.
/// Each call accesses the parameters of only one unit. Call all functions from one thread; the backend may use more
/// threads. The bits of results do not depend on the number of threads or on the addresses of buffers.
class Model {
 public:
  Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  virtual ~Model() = default;

  virtual const std::vector<ModelUnit>& units() const = 0;
  /// The unit of each use, in order of forward. A tied unit appears twice.
  virtual const std::vector<int>& uses() const = 0;

  /// The sizes in bytes of activations, their gradients and scratch, for each use. Available before the first pass. The
  /// model allocates no other memory.
  virtual ActivationSpec activations() const = 0;
  /// Sets the addresses of the buffers of use `memory.use`, aligned to 64 bytes. Call it before every forward(),
  /// recompute(), backward(), backward_input() and backward_weights() of this use.
  virtual void set_memory(const UseMemory& memory) = 0;

  /// Throws UsageError if a token is outside the vocabulary (the message has its position), if a target is neither a
  /// token nor kIgnoredTarget, or if the number of tokens or targets is not batch x sequence.
  virtual void set_batch(const TokenBatch& batch) = 0;
  /// For the micro-batches of a step whose passes a GPU repeats as a graph: see Engine::run_passes(). stage_batch()
  /// copies a micro-batch to memory that only this slot uses, and whose address stays the same. select_batch() then
  /// makes it the batch of the model without a copy. Slots count from 0. Ends decoding, and throws as set_batch() does.
  virtual void stage_batch(int slot, const TokenBatch& batch) = 0;
  virtual void select_batch(int slot) = 0;
  /// Sets the next positions of one sequence in place of a micro-batch. Each later forward() of all uses computes the
  /// logits of the next token in place of the loss, until the next set_batch(). Requires a model that was made for
  /// decoding: see ModelOptions::decode_positions. Throws UsageError if there are no tokens or more than a sequence of
  /// a micro-batch has, if a token is outside the vocabulary, or if the sequence becomes too long. Tokens and cache
  /// must stay valid until the next call.
  virtual void set_decoding(const DecodingPass& pass) = 0;

  virtual void forward(int use) = 0;
  /// Recomputes the saved activations of the use from its input. Only for uses that activations() marks as
  /// recomputable.
  virtual void recompute(int use) = 0;
  virtual void backward(int use) = 0;
  /// The first part of a backward, for uses that activations() marks with splits_backward. Both parts together compute
  /// the same bits as backward(). Computes the gradient of the use's input and writes `weight_inputs`. Does not
  /// access gradients of parameters.
  virtual void backward_input(int use) = 0;
  /// The second part. Computes the gradients of the parameters from `input`, `kept` and `weight_inputs`. Accesses
  /// neither the values of the parameters nor the batch.
  virtual void backward_weights(int use) = 0;

  /// The loss summed over the targets of the micro-batch that are not ignored. Valid after the forward of the last use.
  virtual double loss_sum() const = 0;
  /// The same for the micro-batch of a slot. Waits until the device has run all work that was enqueued so far.
  virtual double loss_sum(int slot) const = 0;
  /// The logits of the token after the last one of set_decoding(), in host memory. In a tensor group, they are those of
  /// the vocabulary entries of this rank: see TensorPart. Valid after the forward of the last use, until the next one.
  virtual std::span<const float> logits() const = 0;
  /// Backward computes the gradients of factor * loss_sum(). Use 1 / target count for the mean loss.
  virtual void set_loss_factor(float factor) = 0;
};

}  // namespace aliquot
