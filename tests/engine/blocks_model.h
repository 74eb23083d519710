#pragma once
// A model whose activations are in memory that the engine allocates, and whose blocks can be recomputed.

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdexcept>
#include <utility>

#include "tests/engine/model_code.h"
#include "tests/engine/small_model.h"
#include "tests/support/plain_memory.h"

namespace aliquot::testing_model {

inline constexpr int kBlocks = 5, kRows = 3, kIn = 6, kMiddle = 11;
inline constexpr int64_t kStreamBytes = kRows * kIn * 4, kKeptBytes = kRows * kMiddle * 4;
inline constexpr int64_t kTensorElements = kMiddle * kIn;  // of each of the two tensors of a block
inline constexpr int kWholeBackwardBlock = 3;              // the block whose backward cannot be split

inline float blocks_value(const std::string& parameter, int64_t element) {
  return 0.4f * initial_value(parameter, element);
}

/// How the model stores its pointers: one for each tensor of a block, or one for that tensor of all blocks. A pointer
/// for all blocks either leads to the tensor of the open block, or is the base of slices.
enum class Pointers : uint8_t { kOwn, kShared, kSlices };

/// Blocks y = x + B tanh(A x). Each block has one use. It has a unit of its own, except that a tied model's last block
/// shares the unit of the first one. The loss is |y|^2 / 2 for the y of the last block. All saved activations are in
/// memory that the engine allocates.
class Blocks {
 public:
  float *a[kBlocks], *b[kBlocks], *d_a[kBlocks], *d_b[kBlocks];  // the first one is for all blocks unless kOwn
  double loss = 0;
  int recomputed = 0;
  int throws_at = -1;
  bool tied = false;
  Pointers pointers = Pointers::kOwn;
  bool frozen[kBlocks] = {};  // one flag per unit; the model does not write gradients of frozen units

  int unit_count() const { return kBlocks - (tied ? 1 : 0); }
  int unit_of(int use) const { return use % unit_count(); }
  PointerSlot slot(float** of, int unit) const {
    switch (pointers) {
      case Pointers::kShared: return of;
      case Pointers::kSlices: return slice(of, unit, unit_count());
      default: return of + unit;
    }
  }
  float* at(float* const* of, int unit) const {
    switch (pointers) {
      case Pointers::kShared: return *of;
      case Pointers::kSlices: return *of + unit * kTensorElements;
      default: return of[unit];
    }
  }
  /// Whether a backward pass in two parts splits the backward of the use. Uses of a shared unit, or of a frozen one,
  /// are not split.
  bool splits(int use) const {
    const bool shared = tied && (use == 0 || use == kBlocks - 1);
    return use != kWholeBackwardBlock && !shared && !frozen[unit_of(use)];
  }

  void declare(Engine& engine) {
    for (int i = 0; i < unit_count(); ++i) {
      const ParameterOptions how{.trainable = !frozen[i]};
      engine.add_unit(fmt::format("h.{}", i))
          .add("a", {kMiddle, kIn}, slot(a, i), slot(d_a, i), how)
          .add("b", {kIn, kMiddle}, slot(b, i), slot(d_b, i), how);
    }
    if (tied) {
      std::vector<std::vector<UnitId>> order;
      for (int use = 0; use < kBlocks; ++use) order.push_back({unit_of(use)});
      engine.declare_order(std::move(order));
    }
    engine.declare_activations(spec(), [this, &engine](const UseMemory& memory) {
      ++recomputed;
      if (memory.use == throws_at) throw std::runtime_error("injected failure in recompute");
      EXPECT_TRUE(memory.recomputed);
      EXPECT_EQ(memory.backward, nullptr);
      EXPECT_EQ(memory.output, nullptr) << "the backward of the block does not read its output";
      run(engine, memory, [this, memory, p = at(a, unit_of(memory.use))] { compute_saved(p, memory); });
    });
  }
  /// Fills the scratch with NaN before each run of a use, because the engine does not preserve scratch between runs.
  static void fill_scratch_with_nan(const UseMemory& memory) {
    std::fill_n(static_cast<float*>(memory.scratch), kRows * kMiddle, std::nanf(""));
  }
  static ActivationSpec spec() {
    ActivationSpec spec;
    for (int i = 0; i < kBlocks; ++i) {
      const bool splits = i != kWholeBackwardBlock;
      spec.uses.push_back({kStreamBytes, kKeptBytes, kKeptBytes, i < kBlocks - 1, true, i == kBlocks - 1, splits,
                           splits ? kStreamBytes + kKeptBytes : 0});
    }
    spec.backward_bytes = kStreamBytes;
    return spec;
  }

  /// Sets the input that recompute and backward read for block 0. Runs on the compute stream, so it affects only work
  /// that is enqueued later.
  void select_sample(Engine& engine, double sample) {
    enqueue_code(engine.compute_stream(), [this, sample] { sample_ = sample; });
  }
  void forward(Engine& engine, const UseMemory& memory, double sample) {
    run(engine, memory, [this, memory, sample, p = at(a, unit_of(memory.use)), q = at(b, unit_of(memory.use))] {
      fill_scratch_with_nan(memory);
      compute_saved(p, memory, sample);
      compute_output(q, memory, sample);
      // If the use is recomputed, backward must read the recomputed activations. The forward therefore overwrites its
      // saved activations with NaN. If backward reads the NaN values, the results change.
      if (memory.recomputed) std::fill_n(static_cast<float*>(memory.kept), kRows * kMiddle, std::nanf(""));
    });
  }
  void backward(Engine& engine, const UseMemory& memory) {
    const int i = unit_of(memory.use);
    if (memory.use == kBlocks - 1) {
      EXPECT_NE(memory.output, nullptr) << "the last block reads its own output in backward";
    }
    float *dp = frozen[i] ? nullptr : at(d_a, i), *dq = frozen[i] ? nullptr : at(d_b, i);
    run(engine, memory, [this, memory, p = at(a, i), q = at(b, i), dp, dq] {
      fill_scratch_with_nan(memory);
      run_backward(p, q, dp, dq, memory);
    });
  }

  /// Runs one part of a split backward. The parts must not access pointers that only the other part may use.
  void backward_part(Engine& engine, UseKind part, const UseMemory& memory) {
    const int i = unit_of(memory.use);
    EXPECT_NE(memory.weight_inputs, nullptr);
    EXPECT_EQ(memory.backward != nullptr, part == UseKind::kBackwardInput);
    const bool for_input = part == UseKind::kBackwardInput;
    if (!for_input || memory.use == kBlocks - 1) {
      EXPECT_EQ(memory.output != nullptr, for_input);
    }
    if (part == UseKind::kBackwardInput) {
      run(engine, memory, [this, memory, p = at(a, i), q = at(b, i)] {
        fill_scratch_with_nan(memory);
        auto* flow = static_cast<float*>(memory.weight_inputs);
        run_backward_input(p, q, {flow, flow + kRows * kIn}, memory);
      });
      return;
    }
    run(engine, memory, [this, memory, dp = frozen[i] ? nullptr : at(d_a, i), dq = frozen[i] ? nullptr : at(d_b, i)] {
      fill_scratch_with_nan(memory);
      const auto* flow = static_cast<const float*>(memory.weight_inputs);
      run_backward_weights(dp, dq, {flow, flow + kRows * kIn}, memory);
    });
  }

  /// Forward and backward without an engine, in separate memory. Sets the loss and adds to the gradients.
  void run_pass_without_engine(const PlainMemory& plain, double sample) {
    for (int i = 0; i < kBlocks; ++i) {
      compute_saved(a[i], plain.with_poisoned_scratch(i), sample);
      compute_output(b[i], plain.of(i), sample);
    }
    for (int i = kBlocks - 1; i >= 0; --i) run_backward(a[i], b[i], d_a[i], d_b[i], plain.with_poisoned_scratch(i));
  }

 private:
  template <typename Body>
  void run(Engine& engine, const UseMemory&, Body body) {
    enqueue_code(engine.compute_stream(), std::move(body));
  }
  static float input(const UseMemory& memory, int at, double sample) {
    return memory.input != nullptr ? static_cast<const float*>(memory.input)[at]
                                   : static_cast<float>(std::sin(sample + at));
  }
  void compute_saved(const float* p, const UseMemory& memory, double sample) {
    sample_ = sample;
    compute_saved(p, memory);
  }
  void compute_saved(const float* p, const UseMemory& memory) const {
    auto* kept = static_cast<float*>(memory.kept);
    for (int r = 0; r < kRows; ++r) {
      for (int m = 0; m < kMiddle; ++m) {
        float sum = 0;
        for (int k = 0; k < kIn; ++k) sum += p[m * kIn + k] * input(memory, r * kIn + k, sample_);
        kept[r * kMiddle + m] = std::tanh(sum);
      }
    }
  }
  void compute_output(const float* q, const UseMemory& memory, double sample) {
    const auto* kept = static_cast<const float*>(memory.kept);
    auto* out = static_cast<float*>(memory.output);
    loss = 0;
    for (int r = 0; r < kRows; ++r) {
      for (int k = 0; k < kIn; ++k) {
        float sum = input(memory, r * kIn + k, sample);
        for (int m = 0; m < kMiddle; ++m) sum += q[k * kMiddle + m] * kept[r * kMiddle + m];
        out[r * kIn + k] = sum;
        loss += 0.5 * sum * sum;
      }
    }
  }
  /// The gradients of a block's output and of the arguments of its tanh.
  template <typename Float>
  struct BlockGradients {
    Float *output, *middle;
  };

  void run_backward(const float* p, const float* q, float* dp, float* dq, const UseMemory& memory) const {
    float output[kRows * kIn];
    auto* middle = static_cast<float*>(memory.scratch);
    run_backward_input(p, q, {output, middle}, memory);
    run_backward_weights(dp, dq, {output, middle}, memory);
  }
  /// Computes the gradient of the block's input in `memory.backward`. Writes to `to` what run_backward_weights()
  /// reads.
  void run_backward_input(const float* p, const float* q, BlockGradients<float> to, const UseMemory& memory) const {
    const auto* kept = static_cast<const float*>(memory.kept);
    auto* flow = static_cast<float*>(memory.backward);
    if (memory.use == kBlocks - 1) std::copy_n(static_cast<const float*>(memory.output), kRows * kIn, flow);
    std::copy_n(flow, kRows * kIn, to.output);
    for (int r = 0; r < kRows; ++r) {
      for (int m = 0; m < kMiddle; ++m) {
        float sum = 0;
        const float h = kept[r * kMiddle + m];
        for (int k = 0; k < kIn; ++k) sum += q[k * kMiddle + m] * flow[r * kIn + k];
        to.middle[r * kMiddle + m] = sum * (1 - h * h);
      }
      for (int k = 0; k < kIn; ++k) {
        for (int m = 0; m < kMiddle; ++m) flow[r * kIn + k] += p[m * kIn + k] * to.middle[r * kMiddle + m];
      }
    }
  }
  void run_backward_weights(float* dp, float* dq, BlockGradients<const float> from, const UseMemory& memory) const {
    const auto* kept = static_cast<const float*>(memory.kept);
    for (int r = 0; r < kRows; ++r) {
      for (int m = 0; m < kMiddle; ++m) {
        for (int k = 0; k < kIn; ++k) {
          if (dq != nullptr) dq[k * kMiddle + m] += from.output[r * kIn + k] * kept[r * kMiddle + m];
          if (dp != nullptr) dp[m * kIn + k] += from.middle[r * kMiddle + m] * input(memory, r * kIn + k, sample_);
        }
      }
    }
  }
  double sample_ = 0;  // determines the input of block 0, which is not in memory of the engine
};

struct EngineWithBlocks {
  EngineWithBlocks(World& world, const EngineOptions& options, bool tied = false, int frozen_unit = -1,
                   Pointers pointers = Pointers::kOwn)
      : engine(world, options) {
    blocks.tied = tied;
    blocks.pointers = pointers;
    if (frozen_unit >= 0) blocks.frozen[frozen_unit] = true;
    blocks.declare(engine);
    engine.materialize([](const ParameterSpec& parameter, int64_t offset, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = blocks_value(parameter.tensor.name, offset + static_cast<int64_t>(i));
    });
  }
  void micro_batch(double sample) {
    engine.micro_batch();
    for (int i = 0; i < kBlocks; ++i) {
      const Scope live = engine.units()[blocks.unit_of(i)].forward();
      blocks.forward(engine, live.memory(), sample);
    }
    for (int i = kBlocks - 1; i >= 0; --i) {
      const Scope live = engine.units()[blocks.unit_of(i)].backward();
      blocks.backward(engine, live.memory());
    }
  }
  Blocks blocks;
  Engine engine;
};

}  // namespace aliquot::testing_model
