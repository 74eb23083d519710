#pragma once
// A model whose uses run collectives. The ranks of a tensor group divide the computation, and all hold full parameters.

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/engine/small_model.h"

namespace aliquot::testing_model {

/// Blocks y = x + B tanh(A x) with the loss |y|^2 / 2 of the last block. Rows are samples. Each rank computes its own
/// rows of tanh(A x) and of its gradient, which the ranks gather, and the part of the other products that belongs to
/// its columns of tanh(A x), which the ranks sum.
class TensorBlocks {
 public:
  static constexpr int kBlocks = 4, kRows = 3, kIn = 6, kMiddle = 10;

  TensorBlocks(Engine& engine, int rank, int tensor) : engine_(engine), rank_(rank % tensor), tensor_(tensor) {
    for (int i = 0; i < kBlocks; ++i)
      engine.add_unit(fmt::format("h.{}", i))
          .add("a", {kMiddle, kIn}, &a_[i], &d_a_[i])
          .add("b", {kIn, kMiddle}, &b_[i], &d_b_[i]);
    engine.declare_activations(spec(tensor), [this](const UseMemory& memory) { compute_middle(memory); });
    engine.materialize([](const ParameterSpec& parameter, int64_t offset, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = 0.4f * initial_value(parameter.tensor.name, offset + static_cast<int64_t>(i));
    });
  }

  static ActivationSpec spec(int tensor) {
    const UseCollective middle{"middle", CollectiveKind::kGather, UsePart::kForward, UseBuffer::kSaved, 0, kRows,
                               kMiddle};
    const UseCollective partial{
        "partial", CollectiveKind::kScatterSum, UsePart::kForward, UseBuffer::kScratch, 64, kRows, kIn, DType::kFloat32,
        false};
    const UseCollective output{"output", CollectiveKind::kGather, UsePart::kForward, UseBuffer::kOutput, 0, kRows, kIn};
    const UseCollective flow{"flow", CollectiveKind::kSum, UsePart::kBackward, UseBuffer::kBackward, 0, kRows, kIn};
    UseCollective back{
        "middle gradient", CollectiveKind::kGather, UsePart::kBackward, UseBuffer::kScratch, 0, kRows, kMiddle};
    UseCollective again{
        "middle again", CollectiveKind::kGather, UsePart::kBackwardWeights, UseBuffer::kScratch, 0, kRows, kMiddle};
    const int64_t stream = output.size_bytes(tensor), wide = middle.size_bytes(tensor);
    ActivationSpec spec;
    for (int i = 0; i < kBlocks; ++i) {
      spec.uses.push_back({.output_bytes = stream,
                           .kept_bytes = wide,
                           .scratch_bytes = std::max(wide, partial.offset_bytes + stream),
                           .recomputable = i < kBlocks - 1,
                           .splits_backward = i != 1,
                           .weight_inputs_bytes = i != 1 ? stream + wide : 0,
                           .collectives = {middle, partial, output, back, flow, again}});
    }
    spec.backward_bytes = stream;
    return spec;
  }

  double loss() const { return loss_; }
  /// Makes the code throw once, before its collective number `count` from now.
  void throw_at(int count) { collectives_until_throw_ = count; }
  void run(const Work& work, double sample) {
    const UseMemory memory = work.memory();
    engine_.compute_stream().run([this, sample] { sample_ = sample; });
    switch (work.kind) {
      case UseKind::kBackward: backward_input(memory); return backward_weights(memory);
      case UseKind::kBackwardInput: return backward_input(memory);
      case UseKind::kBackwardWeights: return backward_weights(memory);
      default: compute_middle(memory); return compute_output(memory);
    }
  }

 private:
  template <typename Body>
  void enqueue(const Body& body) {
    engine_.compute_stream().run(body);
  }
  void communicate(const UseMemory& memory, const char* name) {
    if (collectives_until_throw_-- == 0) throw std::runtime_error("injected failure before a collective");
    memory.run(name);
  }
  int rows_of_rank() const { return (kRows + tensor_ - 1) / tensor_; }
  int first_row() const { return std::min(kRows, rank_ * rows_of_rank()); }
  int end_row() const { return std::min(kRows, (rank_ + 1) * rows_of_rank()); }
  int first_column() const { return kMiddle * rank_ / tensor_; }
  int end_column() const { return kMiddle * (rank_ + 1) / tensor_; }
  static void poison(void* at, int64_t count) { std::fill_n(static_cast<float*>(at), count, std::nanf("")); }
  float input(const UseMemory& memory, int at) const {
    return memory.input != nullptr ? static_cast<const float*>(memory.input)[at]
                                   : static_cast<float>(std::sin(sample_ + at));
  }

  void compute_middle(const UseMemory& memory) {
    enqueue([this, memory, p = a_[memory.use]] {
      auto* kept = static_cast<float*>(memory.kept);
      poison(kept, kRows * kMiddle);
      for (int r = first_row(); r < end_row(); ++r) {
        for (int m = 0; m < kMiddle; ++m) {
          float sum = 0;
          for (int k = 0; k < kIn; ++k) sum += p[m * kIn + k] * input(memory, r * kIn + k);
          kept[r * kMiddle + m] = std::tanh(sum);
        }
      }
    });
    communicate(memory, "middle");
  }

  void compute_output(const UseMemory& memory) {
    enqueue([this, memory, q = b_[memory.use]] {
      const auto* kept = static_cast<const float*>(memory.kept);
      float* partial = static_cast<float*>(memory.scratch) + 16;
      for (int r = 0; r < kRows; ++r) {
        for (int k = 0; k < kIn; ++k) {
          float sum = 0;
          for (int m = first_column(); m < end_column(); ++m) sum += q[k * kMiddle + m] * kept[r * kMiddle + m];
          partial[r * kIn + k] = sum;
        }
      }
    });
    communicate(memory, "partial");
    enqueue([this, memory] {
      const float* sums = static_cast<const float*>(memory.scratch) + 16;
      auto* output = static_cast<float*>(memory.output);
      poison(output, kRows * kIn);
      for (int i = first_row() * kIn; i < end_row() * kIn; ++i) output[i] = input(memory, i) + sums[i];
    });
    communicate(memory, "output");
    enqueue([this, memory] {
      const auto* output = static_cast<const float*>(memory.output);
      loss_ = 0;
      for (int i = 0; i < kRows * kIn; ++i) loss_ += 0.5 * output[i] * output[i];
      // A recompute restores this data. The backward must not read it before.
      if (memory.recomputed) poison(memory.kept, kRows * kMiddle);
    });
  }

  /// Keeps the gradient of the output, and that of the arguments of tanh, for backward_weights().
  float* flow_for_weights(const UseMemory& memory) {
    return memory.weight_inputs != nullptr ? static_cast<float*>(memory.weight_inputs) : own_.data();
  }

  void backward_input(const UseMemory& memory) {
    float* saved = flow_for_weights(memory);
    enqueue([this, memory, saved, q = b_[memory.use]] {
      auto* flow = static_cast<float*>(memory.backward);
      if (memory.use == kBlocks - 1) std::copy_n(static_cast<const float*>(memory.output), kRows * kIn, flow);
      std::copy_n(flow, kRows * kIn, saved);
      const auto* kept = static_cast<const float*>(memory.kept);
      auto* middle = static_cast<float*>(memory.scratch);
      poison(middle, kRows * kMiddle);
      for (int r = first_row(); r < end_row(); ++r) {
        for (int m = 0; m < kMiddle; ++m) {
          float sum = 0;
          for (int k = 0; k < kIn; ++k) sum += q[k * kMiddle + m] * flow[r * kIn + k];
          const float h = kept[r * kMiddle + m];
          middle[r * kMiddle + m] = sum * (1 - h * h);
        }
      }
    });
    communicate(memory, "middle gradient");
    enqueue([this, memory, saved, p = a_[memory.use]] {
      const auto* middle = static_cast<const float*>(memory.scratch);
      auto* flow = static_cast<float*>(memory.backward);
      std::copy_n(middle, kRows * kMiddle, saved + kRows * kIn);
      for (int r = 0; r < kRows; ++r) {
        for (int k = 0; k < kIn; ++k) {
          float sum = rank_ == 0 ? flow[r * kIn + k] : 0;
          for (int m = first_column(); m < end_column(); ++m) sum += p[m * kIn + k] * middle[r * kMiddle + m];
          flow[r * kIn + k] = sum;
        }
      }
    });
    communicate(memory, "flow");
  }

  void backward_weights(const UseMemory& memory) {
    float* saved = flow_for_weights(memory);
    enqueue([this, memory, saved] {
      auto* middle = static_cast<float*>(memory.scratch);
      poison(middle, kRows * kMiddle);
      for (int i = first_row() * kMiddle; i < end_row() * kMiddle; ++i) middle[i] = saved[kRows * kIn + i];
    });
    communicate(memory, "middle again");
    enqueue([this, memory, saved, dp = d_a_[memory.use], dq = d_b_[memory.use]] {
      const auto* middle = static_cast<const float*>(memory.scratch);
      const auto* kept = static_cast<const float*>(memory.kept);
      for (int r = 0; r < kRows; ++r) {
        for (int m = 0; m < kMiddle; ++m) {
          for (int k = 0; k < kIn; ++k) {
            dq[k * kMiddle + m] += saved[r * kIn + k] * kept[r * kMiddle + m];
            dp[m * kIn + k] += middle[r * kMiddle + m] * input(memory, r * kIn + k);
          }
        }
      }
    });
  }

  Engine& engine_;
  int rank_, tensor_;
  float *a_[kBlocks], *b_[kBlocks], *d_a_[kBlocks], *d_b_[kBlocks];
  std::array<float, kRows*(kIn + kMiddle)> own_;  // data between the two parts of a backward that is not split
  double sample_ = 0, loss_ = 0;
  int collectives_until_throw_ = -1;
};

struct TensorTrained {
  std::vector<double> losses, norms;
  std::vector<float> parameters;
  friend bool operator==(const TensorTrained&, const TensorTrained&) = default;
};

inline void expect_close(const TensorTrained& a, const TensorTrained& b) {
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i) EXPECT_NEAR(a.losses[i], b.losses[i], 1e-5 * std::abs(b.losses[i]));
  for (std::size_t i = 0; i < a.norms.size(); ++i) EXPECT_NEAR(a.norms[i], b.norms[i], 1e-5 * b.norms[i]);
  for (std::size_t i = 0; i < a.parameters.size(); ++i) EXPECT_NEAR(a.parameters[i], b.parameters[i], 1e-4);
}

/// Expects the planned peak of every category.
inline void expect_planned_peak(World& world, Engine& engine) {
  EXPECT_EQ(world.device().ledger().peak(), account(engine.plan().schedule).peak);
}

/// Trains three steps and evaluates after each. Expects the planned memory on every rank, and equal parameters on all
/// ranks of a tensor group.
inline TensorTrained train_tensor_blocks(World& world, const EngineOptions& options) {
  const int tensor = options.tensor, stage_ranks = world.rank_count() / options.pipeline;
  const int data_rank = world.rank() % stage_ranks / tensor;
  Engine engine(world, options);
  TensorBlocks blocks(engine, world.rank(), tensor);
  TensorTrained trained;
  for (int step = 0; step < 3; ++step) {
    while (const auto work = engine.next()) blocks.run(*work, step + 0.1 * work->micro_batch + 0.01 * data_rank);
    trained.norms.push_back(engine.step().gradient_norm);
    engine.compute_stream().synchronize();
    trained.losses.push_back(blocks.loss());
    while (const auto work = engine.next_evaluation()) blocks.run(*work, 0.7);
    engine.compute_stream().synchronize();
    trained.losses.push_back(blocks.loss());
  }
  expect_planned_peak(world, engine);
  for (int i = 0; i < TensorBlocks::kBlocks; ++i) {
    for (const char* name : {"a", "b"}) {
      const auto full = engine.read(fmt::format("h.{}.{}", i, name));
      trained.parameters.insert(trained.parameters.end(), full.begin(), full.end());
    }
  }
  engine.check_copies();
  return trained;
}

}  // namespace aliquot::testing_model
