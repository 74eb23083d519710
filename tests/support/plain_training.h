#pragma once
// Reference training on one rank without an engine. Tests compare results of the engine with it.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apps/models/transformer.h"
#include "kernels/system/thread_pool.h"
#include "tests/support/plain_memory.h"

namespace aliquot::test {

/// Owns the tensors of a model, in separate arrays. The model stores pointers to the arrays, so this object must exist
/// while the model runs.
class OwnedTensors {
 public:
  /// Parameters get their declared initial values. Random values depend on the seed and the name. Gradients are zero.
  /// Frozen parameters have no gradient, so the model gets no pointer to one.
  OwnedTensors(Model& model, uint64_t seed);

  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<float> parameter, gradient;
    std::vector<uint16_t> rounded_parameter, rounded_gradient;  // 16-bit tensors that the model reads and writes
    bool in_fp16 = false;                                       // rounded_parameter is fp16 if true, and bf16 if false
  };
  std::map<std::string, Tensor>& tensors() { return tensors_; }  // the tensors, by full name
  Tensor& operator[](const std::string& name) { return tensors_.at(name); }
  void zero_gradients();
  /// If the model has 16-bit arrays, these two functions copy fp32 parameters to them and 16-bit gradients from them.
  void round_parameters();
  void widen_gradients();

 private:
  std::map<std::string, Tensor> tensors_;
};

struct PlainOptions {
  ModelShape shape;
  ModelOptions model;
  bool recompute = false;  // overwrites saved activations with NaN and recomputes them before each backward
  int threads = 1;
  uint64_t seed = 1;
  float loss_scale = 1;  // factor of all gradients; update() divides the gradients by this factor
  float learning_rate = 3e-4f, beta_1 = 0.9f, beta_2 = 0.95f, epsilon = 1e-8f, weight_decay = 0.1f, clip = 1.0f;
};

/// A model with its tensors and activations, and AdamW as plain loops.
class PlainTraining {
 public:
  explicit PlainTraining(const PlainOptions& options);

  /// Runs forward and backward of one micro-batch and returns the mean loss over its tokens. Adds the gradients of the
  /// mean loss to the previous gradients if all units have GradientMode::kAdd.
  double pass(const TokenBatch& batch);
  double evaluate(const TokenBatch& batch);
  /// Runs a forward pass over the next tokens of a sequence, and returns the logits of the token after them.
  std::vector<float> decode(const DecodingPass& pass);
  /// Clips the gradients by their global norm and updates the parameters. Returns the norm before clipping.
  double update();

  Model& model() { return *model_; }
  OwnedTensors& tensors() { return *tensors_; }
  int64_t token_count() const { return token_count_; }

 private:
  void run_forward();
  void recompute_use(int use, const UseMemory& memory);

  struct Moments {
    std::vector<float> first, second;
  };

  PlainOptions options_;
  ThreadPool pool_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<OwnedTensors> tensors_;
  PlainMemory activations_;
  std::map<std::string, Moments> moments_;
  int64_t token_count_;
  int step_ = 0;
};

}  // namespace aliquot::test
