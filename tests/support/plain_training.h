#pragma once
// Reference training on one rank without an engine. The engine must agree with it.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apps/models/transformer.h"
#include "kernels/system/thread_pool.h"
#include "tests/support/plain_memory.h"

namespace aliquot::test {

/// Memory for every tensor of a model, one array each. The model points to it, so it must exist while the model runs.
class OwnedTensors {
 public:
  /// Parameters get the initial values of their declaration, random ones by seed and name. Gradients are zero.
  OwnedTensors(Model& model, uint64_t seed);

  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<float> parameter, gradient;
    std::vector<uint16_t> rounded_parameter, rounded_gradient;  // 16-bit tensors that the model reads and writes
    bool in_fp16 = false;                                       // type of rounded_parameter: fp16, otherwise bf16
  };
  std::map<std::string, Tensor>& tensors() { return tensors_; }  // keyed by full name
  Tensor& operator[](const std::string& name) { return tensors_.at(name); }
  void zero_gradients();
  /// Copy between the fp32 arrays and the model's 16-bit ones, if it has them.
  void round_parameters();
  void widen_gradients();

 private:
  std::map<std::string, Tensor> tensors_;
};

struct PlainOptions {
  ModelShape shape;
  ModelOptions model;
  bool recompute = false;  // recompute uses before their backward, after their activations were overwritten with NaN
  int threads = 1;
  uint64_t seed = 1;
  float loss_scale = 1;  // factor of all gradients until update()
  float learning_rate = 3e-4f, beta_1 = 0.9f, beta_2 = 0.95f, epsilon = 1e-8f, weight_decay = 0.1f, clip = 1.0f;
};

/// A model with its tensors and activations, and AdamW as plain loops.
class PlainTraining {
 public:
  explicit PlainTraining(const PlainOptions& options);

  /// Runs forward and backward of one micro-batch and returns the mean loss over its tokens. Adds the gradients of that
  /// mean to the previous gradients if all units add.
  double pass(const TokenBatch& batch);
  double evaluate(const TokenBatch& batch);
  /// Clips by the global norm and updates. Returns the norm before clipping.
  double update();

  Model& model() { return *model_; }
  OwnedTensors& tensors() { return *tensors_; }
  int64_t token_count() const { return token_count_; }

 private:
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
