#pragma once
// A small network with what models have: several tensors a unit, odd sizes, a tied unit used first and last, and a use of
// two units at once. Written with raw pointers, knowing nothing of the engine.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace aliquot::testing_model {

constexpr int64_t kWidths[] = {7, 19, 33, 7};
constexpr int kLayers = 3;
constexpr int kUses = 4;  // scale; layer 0; layer 1; layer 2 and scale

/// Pointers to parameters or to gradients.
struct Tensors {
  float* scale = nullptr;
  float* weight[kLayers] = {};
  float* bias[kLayers] = {};
};

/// One sample at a time: y = scale * (W2 tanh(W1 tanh(W0 (scale * x) + b0) + b1) + b2), loss = |y - target|^2 / 2.
class SmallModel {
 public:
  Tensors value, gradient;

  void forward(int use, std::span<const float> samples);
  /// Adds to the gradients.
  void backward(int use);
  double loss() const { return loss_; }

 private:
  void layer_forward(int layer);
  void layer_backward(int layer);
  int64_t samples_ = 0;
  std::vector<float> input_, target_, scaled_;  // by sample
  std::vector<float> hidden_[kLayers], grad_hidden_[kLayers + 1];
  std::vector<float> output_grad_;
  double loss_ = 0;
};

struct Shape {
  std::string unit, name;
  std::vector<int64_t> shape;
};
/// In the order of units: scale, layer.0, layer.1, layer.2.
std::vector<Shape> shapes();
float initial_value(const std::string& name, int64_t element);

/// Inputs and targets of one micro-batch: two samples.
std::vector<float> samples(int64_t step, int micro_batch, int rank);

struct Settings {
  EngineOptions options;
  int steps = 4;
  double learning_rate = 0.01;
};

struct Outcome {
  std::vector<double> losses, norms;  // by step; the loss of rank 0's samples
  std::vector<float> parameters;      // whole, in the order of shapes()
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

/// Wraps the model: declares, materializes. The order of units is shapes()'.
void declare(Engine& engine, SmallModel& model);
void train_micro_batch(Engine& engine, SmallModel& model, int64_t step, int micro_batch, int rank);
Outcome train(World& world, const Settings& settings);

/// The same training with no engine and no ranks: gradients of each rank in turn, added in the tree's order.
Outcome train_plainly(int rank_count, const Settings& settings);

}  // namespace aliquot::testing_model
