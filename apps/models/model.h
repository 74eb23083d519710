#pragma once
// What the reference models have in common, seen by whoever trains them: units of tensors to point at memory, and an
// order of uses to bracket. A model owns neither parameters nor gradients nor activations.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/plan/model_spec.h"
#include "kernels/formats/values.h"

namespace aliquot {

/// How a tensor's first values are made, element by element; by whom is not the model's business.
struct Initializer {
  enum class Kind : uint8_t { kZero, kOne, kNormal };
  Kind kind = Kind::kZero;
  float deviation = 0.0f;  // of kNormal, whose mean is 0

  friend bool operator==(const Initializer&, const Initializer&) = default;
};

/// One tensor. The pointers (`data`) are the model's own: whoever owns the memory sets them before a use of the unit, and
/// may set them anew for the next. What they must point at is said by the model (`type`) when it is made.
struct ModelTensor {
  std::string name;  // within its unit: "attn.c_attn.weight"
  std::vector<int64_t> shape;
  Initializer initial;
  Values* parameter = nullptr;
  Values* gradient = nullptr;
  bool is_table = false;  // of tokens or positions: its rows are looked up, so it is no matrix to an optimizer

  int64_t element_count() const {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return count;
  }
};

/// Tensors that are needed together. A tensor's full name is `name + "." + tensor.name`: "h.0.attn.c_attn.weight".
struct ModelUnit {
  std::string name;
  /// A unit that is used twice and assigns writes in its first backward use and adds in the later ones, so its gradient
  /// stays in place from the first to the last.
  GradientMode gradients = GradientMode::kAssign;
  std::vector<ModelTensor> tensors;
};

/// One micro-batch: `batch` sequences, one after the other. Valid until the next set_batch().
struct TokenBatch {
  std::span<const int32_t> tokens;
  std::span<const int32_t> targets;
};

/// One rank's model. Uses are numbered in the order of forward; backward runs them from last to first, each once, and
/// returns what was computed with the parameters of its unit alone. Used from one thread; computes on the pool it was
/// given. The bits of all results depend on neither the number of threads nor where memory lies.
class Model {
 public:
  Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  virtual ~Model() = default;

  virtual const std::vector<ModelUnit>& units() const = 0;
  /// The unit of each use, in order of forward; a tied unit comes twice.
  virtual const std::vector<int>& uses() const = 0;

  /// By use, what activations, their gradients and scratch need, known before anything runs; nothing else is allocated.
  virtual ActivationSpec activations() const = 0;
  /// Before every forward(), recompute() and backward() of `memory.use`: where they lie, aligned to 64 bytes.
  virtual void set_memory(const UseMemory& memory) = 0;

  /// Throws UsageError naming the place when a token lies outside the vocabulary or the count is not batch x sequence.
  virtual void set_batch(const TokenBatch& batch) = 0;

  virtual void forward(int use) = 0;
  /// Makes what the use keeps once more, from its input, for a use that activations() says can be.
  virtual void recompute(int use) = 0;
  virtual void backward(int use) = 0;

  /// The sum over the micro-batch's tokens of the loss, once the last use has run forward.
  virtual double loss_sum() const = 0;
  /// Gradients are those of factor * loss_sum(); 1 / token count makes them those of the micro-batch's mean.
  virtual void set_loss_factor(float factor) = 0;
};

}  // namespace aliquot
