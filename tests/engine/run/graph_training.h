#pragma once
// Training with Engine::run_passes() on simulated GPUs, for the tests of graphs.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <gtest/gtest.h>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/device/device_cuda.h"
#include "tests/engine/model_code.h"
#include "tests/engine/small_model.h"
#include "tests/support/simulated/simulated_cuda.h"

namespace aliquot::testing_model {

/// Enqueues model code as kernels while it exists.
class CodeIsKernels {
 public:
  CodeIsKernels() {
    enqueue_code = [](Stream& compute, std::function<void()> code) {
      simulated::launch(cuda_stream(compute), std::move(code));
    };
  }
  ~CodeIsKernels() { enqueue_code = before_; }
  CodeIsKernels(const CodeIsKernels&) = delete;
  CodeIsKernels& operator=(const CodeIsKernels&) = delete;

 private:
  EnqueueCode before_ = enqueue_code;
};

class Graphs : public testing::Test {
  CodeIsKernels code_is_kernels_;
};

/// The world of a test: over NCCL if it has several ranks.
inline WorldOptions gpus(int ranks) {
  return {.device = DeviceChoice::kCuda,
          .kind = ranks == 1 ? WorldChoice::kThreads : WorldChoice::kNccl,
          .timeout_seconds = 60};
}

inline constexpr int kSteps = 5;

/// What training produced, and how it ran.
struct TrainingResult {
  Outcome outcome;
  int calls = 0;  // of the function of run_passes(), on rank 0

  friend bool operator==(const TrainingResult&, const TrainingResult&) = default;
};

/// Trains the small model. Its samples differ in each step, and are at fixed addresses.
class SmallTrainer {
 public:
  SmallTrainer(World& world, const Settings& settings) : world_(world), setup_(world, settings) {
    samples_.resize(static_cast<std::size_t>(settings.options.accumulate));
    losses_.resize(samples_.size());
  }

  void step(int64_t number) {
    auto& [model, engine] = setup_;
    engine.compute_stream().synchronize();  // the samples may be read until then
    for (std::size_t m = 0; m < samples_.size(); ++m) samples_[m] = samples(number, static_cast<int>(m), world_.rank());
    engine.run_passes([&] { passes(); });
    engine.compute_stream().synchronize();
    double loss = 0;
    for (const double one : losses_) loss += one;
    const StepReport report = engine.step();
    if (sums_losses) world_.sum({&loss, 1});
    run_.outcome.losses.push_back(loss);
    run_.outcome.norms.push_back(report.skipped ? 0 : report.gradient_norm);
  }

  TrainingResult finish() {
    run_.outcome.parameters = read_all(setup_.engine);
    return run_;
  }
  /// Finishes a step that an exception has left.
  void abandoned_step() {
    const StepReport report = setup_.engine.step();
    EXPECT_TRUE(report.skipped);
    double loss = 0;
    world_.sum({&loss, 1});
    run_.outcome.losses.push_back(loss);
    run_.outcome.norms.push_back(0);
  }
  Engine& engine() { return setup_.engine; }
  SmallModel& model() { return setup_.model; }
  int calls() const { return run_.calls; }

  /// Called before each use, if it is set.
  std::function<void(const Work&)> before_use;
  std::atomic<bool> poison = false;  // makes gradients NaN
  bool sums_losses = true;           // over ranks, which waits for earlier collectives

 private:
  void passes() {
    auto& [model, engine] = setup_;
    ++run_.calls;
    const auto scale = static_cast<float>(engine.loss_scale());
    while (const auto work = engine.next()) {
      if (before_use) before_use(*work);
      const int use = work->use;
      const auto m = static_cast<std::size_t>(work->micro_batch);
      if (work->kind == UseKind::kForward) {
        enqueue_code(engine.compute_stream(), [this, m, use, values = model.value] {
          setup_.model.forward(use, samples_[m], values);
          losses_[m] = setup_.model.loss();
        });
      } else {
        enqueue_code(engine.compute_stream(), [this, use, scale, values = model.value, gradients = model.gradient] {
          setup_.model.backward(use, poison ? std::nanf("") : scale, values, gradients);
        });
      }
    }
  }

  World& world_;
  std::vector<std::vector<float>> samples_;
  std::vector<double> losses_;
  TrainingResult run_;
  EngineWithModel setup_;  // last: its destructor waits for work that uses the other members
};

/// Trains kSteps steps on simulated GPUs, and returns the result of rank 0.
inline TrainingResult train_small(int ranks, Settings settings, GraphMode graph) {
  settings.options.graph = graph;
  TrainingResult run;
  World::threads(
      ranks,
      [&](World& world) {
        SmallTrainer training(world, settings);
        for (int step = 0; step < kSteps; ++step) training.step(step);
        const TrainingResult own = training.finish();
        if (world.rank() == 0) run = own;
      },
      gpus(ranks));
  return run;
}
/// Trains on two ranks. `on_rank_1` runs before each step on rank 1, and may throw.
inline TrainingResult train_with(Settings settings, GraphMode graph,
                                 const std::function<void(SmallTrainer& training, int step)>& on_rank_1) {
  settings.options.graph = graph;
  settings.options.tell_skipped = false;
  TrainingResult run;
  World::threads(
      2,
      [&](World& world) {
        SmallTrainer training(world, settings);
        for (int step = 0; step < kSteps + 2; ++step) {
          if (world.rank() == 1) on_rank_1(training, step);
          try {
            training.step(step);
          } catch (const std::runtime_error& error) {
            EXPECT_EQ(world.rank(), 1) << error.what();
            training.abandoned_step();
          }
        }
        const TrainingResult own = training.finish();
        if (world.rank() == 0) run = own;
      },
      gpus(2));
  return run;
}

}  // namespace aliquot::testing_model
