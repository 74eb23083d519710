#pragma once
// A model whose parameters are split over tensor groups.

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sharding/split.h"
#include "tests/engine/model_code.h"
#include "tests/engine/tensor_blocks.h"

namespace aliquot::testing_model {

/// Blocks y = s x + B tanh(A x + c) + d with the loss |y|^2 / 2 of the last block. Rows of x are samples. Each rank of
/// a tensor group has the rows of A and c and the columns of B that belong to its part of the middle, and computes its
/// part of the sums over the middle. It adds the gradient of d over its own samples only, and that of s over all
/// samples. `Value` and `Gradient` are the types of the elements of parameters and gradients.
template <typename Value, typename Gradient = float>
class BasicSplitBlocks {
 public:
  static constexpr int kBlocks = 8, kRows = 3, kIn = 6, kMiddle = 10;

  struct Variant {
    bool assigns = false;  // gradients are overwritten
    bool tied = false;     // another use of the first block follows the last one
  };

  BasicSplitBlocks(Engine& engine, int rank, int tensor, const Variant& variant)
      : engine_(engine),
        assigns_(variant.assigns),
        uses_(variant.tied ? kBlocks + 1 : kBlocks),
        first_(rank % tensor == 0),
        middle_(static_cast<int>(Slice({kMiddle}, rows(), rank % tensor, tensor).element_count())) {
    std::tie(first_row_, end_row_) = rank_range(kRows, rank % tensor, tensor);
    for (int i = 0; i < kBlocks; ++i) {
      Unit& unit = engine.add_unit(fmt::format("h.{}", i));
      unit.add("a", {kMiddle, kIn}, &value_[i].a, &gradient_[i].a, {.split = rows()});
      unit.add("s", {kIn}, &value_[i].s, &gradient_[i].s);
      unit.add("c", {kMiddle}, &value_[i].c, &gradient_[i].c, {.decayed = false, .split = rows()});
      unit.add("b", {kIn, kMiddle}, &value_[i].b, &gradient_[i].b, {.split = Split::columns(parts())});
      unit.add("d", {kIn}, &value_[i].d, &gradient_[i].d, {.partial_gradient = true});
      if (assigns_) unit.assigns_gradients();
    }
    if (variant.tied) {
      std::vector<std::vector<UnitId>> order;
      for (int use = 0; use < uses_; ++use) order.push_back({use % kBlocks});
      engine.declare_order(order);
    }
    const int64_t largest = largest_slice_shape({kMiddle}, rows(), tensor)[0];
    engine.declare_activations(spec(largest, uses_), [this](const UseMemory& memory) { compute_middle(memory); });
    engine.materialize([](const ParameterSpec& parameter, int64_t offset, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = 0.4f * initial_value(parameter.tensor.name, offset + static_cast<int64_t>(i));
    });
  }

  static std::vector<std::string> names() {
    std::vector<std::string> names;
    for (int i = 0; i < kBlocks; ++i) {
      for (const char* name : {"a", "s", "c", "b", "d"}) names.push_back(fmt::format("h.{}.{}", i, name));
    }
    return names;
  }

  /// Freezes or unfreezes the parameters whose names begin with `prefix`. Call between steps.
  void set_trainable(const std::string& prefix, bool trainable) {
    engine_.set_trainable(prefix, trainable);
    for (const std::string& name : names()) {
      if (!name.starts_with(prefix)) continue;
      trainable ? frozen_.erase(name) : frozen_.insert(name).second;
    }
  }

  /// The loss of the last forward.
  double loss() const { return loss_; }
  /// Returns the sum of the losses of training since the last call.
  double take_loss_sum() { return std::exchange(loss_sum_, 0); }
  void run(const Work& work, double sample) {
    const UseMemory memory = work.memory();
    enqueue_code(engine_.compute_stream(), [this, sample] { sample_ = sample; });
    if (work.kind == UseKind::kBackward) return backward(memory);
    compute_middle(memory);
    compute_output(memory);
    if (work.kind == UseKind::kForward && work.use == uses_ - 1)
      enqueue_code(engine_.compute_stream(), [this] { loss_sum_ += loss_; });
  }

 private:
  template <typename T>
  struct Pointers {
    T *a = nullptr, *s = nullptr, *c = nullptr, *b = nullptr, *d = nullptr;
  };

  static std::vector<DimensionPart> parts() { return {{6, 2}, 4}; }
  static Split rows() { return Split::rows(parts()); }

  static ActivationSpec spec(int64_t largest, int uses) {
    const UseCollective output{.name = "output", .rows = kRows, .row_elements = kIn};
    UseCollective flow = output;
    flow.name = "flow", flow.part = UsePart::kBackward, flow.buffer = UseBuffer::kBackward;
    ActivationSpec spec;
    spec.backward_bytes = 8 * kIn * sizeof(float);  // 8 ranks of a tensor group have parts of one row each
    for (int i = 0; i < uses; ++i) {
      spec.uses.push_back({.output_bytes = spec.backward_bytes,
                           .kept_bytes = kRows * largest * static_cast<int64_t>(sizeof(float)),
                           .recomputable = i < uses - 1,
                           .output_in_backward = i == uses - 1,
                           .collectives = {output, flow}});
    }
    return spec;
  }

  template <typename Body>
  void enqueue(const Body& body) {
    enqueue_code(engine_.compute_stream(), body);
  }
  float input(const UseMemory& memory, int at) const {
    return memory.input != nullptr ? static_cast<const float*>(memory.input)[at]
                                   : static_cast<float>(std::sin(sample_ + at));
  }
  /// Writes element `at` of a gradient. `gradients` is null if the parameter is frozen.
  void put(Gradient* gradients, int at, float value) const {
    if (gradients != nullptr) gradients[at] = Gradient(assigns_ ? value : gradients[at] + value);
  }
  const Pointers<Value>& values_of(int use) const { return value_[use % kBlocks]; }
  /// The pointers to gradients, with null pointers for frozen parameters.
  Pointers<Gradient> gradients_of(int use) const {
    const int block = use % kBlocks;
    Pointers<Gradient> pointers = gradient_[block];
    const auto is_frozen = [&](const char* name) { return frozen_.contains(fmt::format("h.{}.{}", block, name)); };
    if (is_frozen("a")) pointers.a = nullptr;
    if (is_frozen("s")) pointers.s = nullptr;
    if (is_frozen("c")) pointers.c = nullptr;
    if (is_frozen("b")) pointers.b = nullptr;
    if (is_frozen("d")) pointers.d = nullptr;
    return pointers;
  }

  void compute_middle(const UseMemory& memory) {
    enqueue([this, memory, p = values_of(memory.use)] {
      auto* kept = static_cast<float*>(memory.kept);
      for (int r = 0; r < kRows; ++r) {
        for (int m = 0; m < middle_; ++m) {
          float sum = p.c[m];
          for (int k = 0; k < kIn; ++k) sum += p.a[m * kIn + k] * input(memory, r * kIn + k);
          kept[r * middle_ + m] = std::tanh(sum);
        }
      }
    });
  }

  void compute_output(const UseMemory& memory) {
    enqueue([this, memory, p = values_of(memory.use)] {
      const auto* kept = static_cast<const float*>(memory.kept);
      auto* output = static_cast<float*>(memory.output);
      for (int r = 0; r < kRows; ++r) {
        for (int k = 0; k < kIn; ++k) {
          float sum = first_ ? p.s[k] * input(memory, r * kIn + k) + p.d[k] : 0;
          for (int m = 0; m < middle_; ++m) sum += p.b[k * middle_ + m] * kept[r * middle_ + m];
          output[r * kIn + k] = sum;
        }
      }
    });
    memory.run("output");
    enqueue([this, memory] {
      const auto* output = static_cast<const float*>(memory.output);
      loss_ = 0;
      for (int i = 0; i < kRows * kIn; ++i) loss_ += 0.5 * output[i] * output[i];
    });
  }

  void backward(const UseMemory& memory) {
    enqueue([this, memory, p = values_of(memory.use), scale = static_cast<float>(engine_.loss_scale())] {
      auto* flow = static_cast<float*>(memory.backward);
      const auto* output = static_cast<const float*>(memory.output);
      for (int i = 0; i < kRows * kIn && memory.use == uses_ - 1; ++i) flow[i] = scale * output[i];
      gradients_of_middle(memory, flow, p);
    });
    enqueue([this, memory, g = gradients_of(memory.use)] {
      gradients_of_parameters(memory, static_cast<const float*>(memory.backward), g);
    });
    enqueue([this, memory, p = values_of(memory.use)] {
      auto* flow = static_cast<float*>(memory.backward);
      for (int r = 0; r < kRows; ++r) {
        for (int k = 0; k < kIn; ++k) {
          float sum = first_ ? p.s[k] * flow[r * kIn + k] : 0;
          for (int m = 0; m < middle_; ++m) sum += p.a[m * kIn + k] * dz_[r * middle_ + m];
          flow[r * kIn + k] = sum;
        }
      }
    });
    memory.run("flow");
  }

  /// Computes the gradient of the arguments of tanh.
  void gradients_of_middle(const UseMemory& memory, const float* flow, const Pointers<Value>& p) {
    const auto* kept = static_cast<const float*>(memory.kept);
    for (int r = 0; r < kRows; ++r) {
      for (int m = 0; m < middle_; ++m) {
        float sum = 0;
        for (int k = 0; k < kIn; ++k) sum += p.b[k * middle_ + m] * flow[r * kIn + k];
        dz_[r * middle_ + m] = sum * (1 - kept[r * middle_ + m] * kept[r * middle_ + m]);
      }
    }
  }

  void gradients_of_parameters(const UseMemory& memory, const float* flow, const Pointers<Gradient>& g) const {
    const auto* kept = static_cast<const float*>(memory.kept);
    for (int m = 0; m < middle_; ++m) {
      float sum = 0;
      for (int r = 0; r < kRows; ++r) sum += dz_[r * middle_ + m];
      put(g.c, m, sum);
      for (int k = 0; k < kIn; ++k) {
        float da = 0, db = 0;
        for (int r = 0; r < kRows; ++r) da += dz_[r * middle_ + m] * input(memory, r * kIn + k);
        for (int r = 0; r < kRows; ++r) db += flow[r * kIn + k] * kept[r * middle_ + m];
        put(g.a, m * kIn + k, da);
        put(g.b, k * middle_ + m, db);
      }
    }
    for (int k = 0; k < kIn; ++k) {
      float ds = 0, dd = 0;
      for (int r = 0; r < kRows; ++r) ds += flow[r * kIn + k] * input(memory, r * kIn + k);
      for (int r = static_cast<int>(first_row_); r < end_row_; ++r) dd += flow[r * kIn + k];
      put(g.s, k, ds);
      put(g.d, k, dd);
    }
  }

  Engine& engine_;
  bool assigns_;
  int uses_;
  bool first_;
  int middle_;  // number of rows of A on this rank
  int64_t first_row_ = 0, end_row_ = 0;
  std::array<Pointers<Value>, kBlocks> value_;
  std::array<Pointers<Gradient>, kBlocks> gradient_;
  std::set<std::string> frozen_;
  std::array<float, kRows * kMiddle> dz_;  // gradients of the arguments of tanh, of the current backward
  double sample_ = 0, loss_ = 0, loss_sum_ = 0;
};

class SplitBlocks : public BasicSplitBlocks<float> {
 public:
  SplitBlocks(Engine& engine, int rank, int tensor, bool assigns = false)
      : BasicSplitBlocks(engine, rank, tensor, {.assigns = assigns}) {}
};

/// Returns all parameters of the model, in fp32. All ranks must call it.
inline std::vector<float> read_split_blocks(Engine& engine) {
  std::vector<float> parameters;
  for (const std::string& name : SplitBlocks::names()) {
    const auto full = engine.read(name);
    parameters.insert(parameters.end(), full.begin(), full.end());
  }
  return parameters;
}

/// Trains the steps [first_step, end_step), and evaluates after each.
template <typename Blocks>
TensorTrained train_split_blocks(Engine& engine, Blocks& blocks, int first_step, int end_step) {
  const EngineOptions& options = engine.options();
  const World& world = engine.world();
  const int data_rank = world.rank() % (world.rank_count() / options.pipeline) / options.tensor;
  TensorTrained trained;
  for (int step = first_step; step < end_step; ++step) {
    while (const auto work = engine.next()) blocks.run(*work, step + 0.1 * work->micro_batch + 0.01 * data_rank);
    trained.norms.push_back(engine.step().gradient_norm);
    engine.compute_stream().synchronize();
    trained.losses.push_back(blocks.loss());
    while (const auto work = engine.next_evaluation()) blocks.run(*work, 0.7);
    engine.compute_stream().synchronize();
    trained.losses.push_back(blocks.loss());
  }
  trained.parameters = read_split_blocks(engine);
  engine.check_copies();
  return trained;
}

/// Trains two steps. Expects the planned memory.
inline TensorTrained train_split_blocks(World& world, const EngineOptions& options) {
  Engine engine(world, options);
  SplitBlocks blocks(engine, world.rank(), options.tensor);
  const TensorTrained trained = train_split_blocks(engine, blocks, 0, 2);
  expect_planned_peak(world, engine);
  return trained;
}

}  // namespace aliquot::testing_model
