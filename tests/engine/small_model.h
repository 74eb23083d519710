#pragma once
// A small network for tests of the engine. Its tensors have odd sizes, the first and the last use share a unit, and the
// last use has two units. SmallModel works on raw pointers and does not use the engine.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace aliquot::testing_model {

constexpr int64_t kWidths[] = {7, 19, 33, 7};
constexpr int kLayers = 3;
constexpr int kUses = 4;  // units of the uses: {scale}, {layer 0}, {layer 1}, {layer 2, scale}

constexpr int kTensors = 1 + 2 * kLayers;

/// Pointers to parameters or to gradients, in the order of shapes().
struct Tensors {
  void* at[kTensors] = {};
};

/// For each sample: y = scale * (W2 tanh(W1 tanh(W0 (scale * x) + b0) + b1) + b2), loss = |y - target|^2 / 2. Computes
/// in fp32. Converts 16-bit parameters to fp32 and rounds gradients to their type.
class SmallModel {
 public:
  explicit SmallModel(const Precision& precision = {}) : precision_(precision) {}

  Tensors value, gradient;
  bool frozen[kTensors] = {};  // frozen tensors have no gradient

  void forward(int use, std::span<const float> samples) { forward(use, samples, value); }
  /// Adds the gradients of the loss times `loss_scale`.
  void backward(int use, float loss_scale = 1.0f) { backward(use, loss_scale, value, gradient); }
  /// Overloads with copies of the pointers, for a stream that runs the work later.
  void forward(int use, std::span<const float> samples, const Tensors& values);
  void backward(int use, float loss_scale, const Tensors& values, const Tensors& gradients);
  double loss() const { return loss_; }
  /// Flips a low bit of the output of layer 1.
  void corrupt_hidden();

 private:
  void open(int use, const Tensors& values, const Tensors* gradients);
  void close(int use, const Tensors& gradients);
  void layer_forward(int layer);
  void layer_backward(int layer);
  Precision precision_;
  float* v_[kTensors] = {};  // values and gradients of the current use
  float* g_[kTensors] = {};
  std::vector<float> wide_[kTensors], sums_[kTensors];
  int64_t samples_ = 0;
  std::vector<float> input_, target_, scaled_;  // data of all samples of the micro-batch
  std::vector<float> hidden_[kLayers], grad_hidden_[kLayers + 1];
  std::vector<float> output_grad_;
  double loss_ = 0;
};

struct Shape {
  std::string unit, name;
  std::vector<int64_t> shape;
};
/// Returns the names and shapes of the parameters, in the order of units: scale, layer.0, layer.1, layer.2.
std::vector<Shape> shapes();
float initial_value(const std::string& name, int64_t element);

/// Returns the inputs, and then the targets, of one micro-batch of two samples.
std::vector<float> samples(int64_t step, int micro_batch, int rank);

int64_t element_count(int tensor);
/// True if Muon updates the tensor as a matrix. This applies to the weights of all layers except the last.
constexpr bool is_matrix(int tensor) { return tensor % 2 == 1 && tensor < kTensors - 2; }

struct Settings {
  EngineOptions options;
  int steps = 4;
  double learning_rate = 0.01;
  int nodes = 1;  // number of nodes, for the reference with quantized gradients
};

struct Outcome {
  std::vector<double> losses, norms;  // one value per step; losses are computed on rank 0's samples
  std::vector<float> parameters;      // full fp32 parameters in the order of shapes()
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

/// Declares the model to the engine and materializes it. Units are in the order of shapes().
void declare(Engine& engine, SmallModel& model);
/// Runs forward and backward of one micro-batch. Multiplies the loss by the engine's loss scale and by `blow_up`.
void train_micro_batch(Engine& engine, SmallModel& model, int64_t step, int micro_batch, int rank,
                       float blow_up = 1.0f);
/// Runs the model code of a use that Engine::next() returned, and compares the loss of micro-batch 0.
void run_use(Engine& engine, SmallModel& model, const Work& work, std::vector<float> samples);
/// Returns the full fp32 parameters in the order of shapes(). All ranks must call it.
std::vector<float> read_all(Engine& engine);
/// Returns the loss of one evaluation, on a batch that training does not use.
double evaluate(Engine& engine, SmallModel& model, int64_t batch, int rank);
Outcome train(World& world, const Settings& settings);

inline const WorldOptions kHosts = {.device = DeviceChoice::kHost, .timeout_seconds = 60};
/// Runs train() on `ranks` thread ranks and returns the result of rank 0.
Outcome train_on(int ranks, const Settings& settings, const WorldOptions& options = kHosts);

/// Trains two steps of two micro-batches and expects that the ledger's peaks equal the plan's.
void expect_planned_memory(World& world, const Settings& settings);

/// Trains four steps with an evaluation after each. Layer 0 is frozen in the second and third step. Returns the
/// gradient norm and the evaluation loss of rank 0 after each step.
std::vector<double> freeze_and_evaluate(int ranks, const Settings& settings, const WorldOptions& options = kHosts);

/// A SmallModel and the engine that trains it.
struct EngineWithModel {
  EngineWithModel(World& world, const Settings& settings)
      : model(settings.options.precision), engine(world, settings.options) {
    declare(engine, model);
    engine.set_learning_rate(settings.learning_rate);
  }
  SmallModel model;
  Engine engine;
};

/// The reference: the same training without the engine, in one thread. Computes the gradients of one rank after another
/// and adds them in tree order.
Outcome train_without_engine(int rank_count, const Settings& settings);

}  // namespace aliquot::testing_model
