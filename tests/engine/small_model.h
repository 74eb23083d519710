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

constexpr int kTensors = 1 + 2 * kLayers;

/// Pointers to parameters or to gradients, in the order of shapes().
struct Tensors {
  void* at[kTensors] = {};
};

/// One sample at a time: y = scale * (W2 tanh(W1 tanh(W0 (scale * x) + b0) + b1) + b2), loss = |y - target|^2 / 2.
/// Computes in fp32; what it is handed in 16 bits it widens on the way in and rounds on the way out.
class SmallModel {
 public:
  explicit SmallModel(const Precision& precision = {}) : precision_(precision) {}

  Tensors value, gradient;
  bool frozen[kTensors] = {};  // has no gradient to write

  void forward(int use, std::span<const float> samples) { forward(use, samples, value); }
  /// Adds to the gradients, of the loss times `loss_scale`.
  void backward(int use, float loss_scale = 1.0f) { backward(use, loss_scale, value, gradient); }
  /// With pointers as they were at issue, for a stream that runs it later.
  void forward(int use, std::span<const float> samples, const Tensors& values);
  void backward(int use, float loss_scale, const Tensors& values, const Tensors& gradients);
  double loss() const { return loss_; }

 private:
  void open(int use, const Tensors& values, const Tensors* gradients);
  void close(int use, const Tensors& gradients);
  void layer_forward(int layer);
  void layer_backward(int layer);
  Precision precision_;
  float* v_[kTensors] = {};  // of the use that is open
  float* g_[kTensors] = {};
  std::vector<float> wide_[kTensors], sums_[kTensors];
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

int64_t element_count(int tensor);
/// Muon takes weights, but for the last layer's.
constexpr bool takes_as_matrix(int tensor) { return tensor % 2 == 1 && tensor < kTensors - 2; }

struct Settings {
  EngineOptions options;
  int steps = 4;
  double learning_rate = 0.01;
  int nodes = 1;  // that quantised gradients go between
};

struct Outcome {
  std::vector<double> losses, norms;  // by step; the loss of rank 0's samples
  std::vector<float> parameters;      // the masters, whole, in the order of shapes()
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

/// Wraps the model: declares, materializes. The order of units is shapes()'.
void declare(Engine& engine, SmallModel& model);
/// `blow_up` multiplies the loss, beside the engine's own scale.
void train_micro_batch(Engine& engine, SmallModel& model, int64_t step, int micro_batch, int rank,
                       float blow_up = 1.0f);
/// The masters, whole, in the order of shapes(). Collective.
std::vector<float> read_all(Engine& engine);
/// One pass of evaluation over a batch of its own; the loss.
double evaluate(Engine& engine, SmallModel& model, int64_t batch, int rank);
Outcome train(World& world, const Settings& settings);

inline const WorldOptions kHosts = {.device = DeviceChoice::kHost, .timeout_seconds = 60};
/// train() on that many thread-ranks, as rank 0 saw it.
Outcome train_on(int ranks, const Settings& settings, const WorldOptions& options = kHosts);

/// Trains two steps of two micro-batches and expects the ledger's peaks to be the plan's.
void expect_planned_memory(World& world, const Settings& settings);

/// Norms and losses, as rank 0 saw them, of steps with a layer frozen after the first, and an evaluation after each.
std::vector<double> freeze_and_evaluate(int ranks, const Settings& settings);

/// A model that an engine trains.
struct EngineWithModel {
  EngineWithModel(World& world, const Settings& settings)
      : model(settings.options.precision), engine(world, settings.options) {
    declare(engine, model);
    engine.set_learning_rate(settings.learning_rate);
  }
  SmallModel model;
  Engine engine;
};

/// The same training with no engine and no ranks: gradients of each rank in turn, added in the tree's order.
Outcome train_without_engine(int rank_count, const Settings& settings);

}  // namespace aliquot::testing_model
