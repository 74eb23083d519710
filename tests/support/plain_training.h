#pragma once
// Training with nothing sharded and nothing shared: the loop that the engine must agree with.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apps/models/transformer.h"
#include "kernels/system/thread_pool.h"
#include "tests/support/plain_memory.h"

namespace aliquot::test {

/// Memory for every tensor of a model, each an array of its own; the model points at it while this lives.
class OwnedTensors {
 public:
  /// Parameters get the values their declaration asks for, drawn by seed and name; gradients are zero.
  OwnedTensors(Model& model, uint64_t seed);

  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<float> parameter, gradient;
    std::vector<uint16_t> rounded_parameter, rounded_gradient;  // what a model in 16 bits reads, and what it writes
    bool in_fp16 = false;                                       // what it reads: bf16 else
  };
  std::map<std::string, Tensor>& tensors() { return tensors_; }  // by full name
  Tensor& operator[](const std::string& name) { return tensors_.at(name); }
  void zero_gradients();
  /// Between the fp32 arrays and the model's 16-bit ones, where it has such.
  void round_parameters();
  void widen_gradients();

 private:
  std::map<std::string, Tensor> tensors_;
};

struct PlainOptions {
  ModelShape shape;
  ModelOptions model;
  bool recompute = false;  // what can be is made again before its backward, from ruins
  int threads = 1;
  uint64_t seed = 1;
  float loss_scale = 1;  // gradients are so many times what they are, until update()
  float learning_rate = 3e-4f, beta_1 = 0.9f, beta_2 = 0.95f, epsilon = 1e-8f, weight_decay = 0.1f, clip = 1.0f;
};

/// A model, its tensors, its activations and AdamW in plain loops.
class PlainTraining {
 public:
  explicit PlainTraining(const PlainOptions& options);

  /// One micro-batch forward and backward; gradients are those of the mean over its tokens, added to what was there if
  /// all units add. Returns that mean.
  double pass(const TokenBatch& batch);
  double evaluate(const TokenBatch& batch);
  /// Clips by the global norm and updates. Returns the norm before clipping.
  double update();

  Model& model() { return *model_; }
  OwnedTensors& tensors() { return *tensors_; }
  int64_t token_count() const { return token_count_; }

 private:
  void run_again(int use, const UseMemory& memory);

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
