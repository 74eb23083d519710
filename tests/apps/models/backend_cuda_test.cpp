// Compares the layers of the models on a GPU with those on the host.
#include "apps/models/cuda/backend_cuda.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <numeric>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/formats/float16.h"
#include "tests/support/all_close.h"
#include "tests/support/mirrored_array.h"
#include "tests/support/random_values.h"

namespace aliquot::test {
namespace {

using Array = MirroredArray;

class BackendOnGpu : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "this build finds no usable GPU, so the layers were only compiled";
    device_ = make_cuda_device(0);
    stream_ = device_->make_stream(Lane::kCompute);
    gpu_ = make_cuda_backend(*device_);
    gpu_->compute_on(*stream_);
    host_ = make_host_backend(pool_);
  }

  DType type() const { return GetParam(); }
  Array random(int64_t count, DType type = DType::kFloat32, float scale = 1.0f) {
    return {*device_, *stream_, random_.floats(count, scale), type};
  }
  Array zeros(int64_t count, DType type = DType::kFloat32) {
    return {*device_, *stream_, std::vector<float>(static_cast<size_t>(count)), type};
  }
  TokenBatch tokens(int64_t count, int64_t entries) {
    tokens_.clear();
    targets_.clear();
    for (int64_t i = 0; i < count; ++i) {
      tokens_.push_back(static_cast<int32_t>(random_.bits() % static_cast<uint64_t>(entries)));
      targets_.push_back(static_cast<int32_t>(random_.bits() % static_cast<uint64_t>(entries)));
    }
    return {tokens_, targets_};
  }
  Array product_scratch() {
    return zeros(
        std::max(gpu_->product_scratch_elements(type(), type()), host_->product_scratch_elements(type(), type())));
  }

  void check_linear(int64_t outputs, bool outputs_first) {
    const int64_t rows = 33, inputs = 40, stride = outputs_first ? 136 : 0;
    SCOPED_TRACE(testing::Message() << outputs << " outputs"
                                    << (outputs_first ? ", first, in wider rows" : ", after the inputs"));
    const int64_t row = stride == 0 ? outputs : stride;
    Array x = random(rows * inputs, type()), weight = random(inputs * outputs, type(), 0.3f),
          bias = random(outputs, type());
    Array residual = random(rows * outputs), to = zeros(rows * row), from = random(rows * row, type());
    Array d_x = random(rows * inputs), d_weight = random(inputs * outputs), d_bias = random(outputs);
    Array scratch = product_scratch();
    const auto run = [&](Backend& loops, auto at, auto values) {
      const Linear linear{.weight = values(weight),
                          .bias = values(bias),
                          .rows = rows,
                          .inputs = inputs,
                          .outputs = outputs,
                          .outputs_first = outputs_first,
                          .scratch = at(scratch),
                          .output_stride = stride};
      loops.linear_forward(linear, values(x), outputs_first ? nullptr : at(residual), values(to));
      for (const bool add : {false, true}) {
        loops.linear_backward_input(linear, values(from), values(d_x), add);
        loops.linear_backward_weights(linear, values(x), values(from), {values(d_weight), values(d_bias), add});
      }
    };
    run(
        *host_, [](Array& a) { return a.host_as<float>(); }, [](Array& a) { return a.host(); });
    run(
        *gpu_, [](Array& a) { return a.gpu_as<float>(); }, [](Array& a) { return a.gpu(); });
    EXPECT_TRUE(to.alike());
    EXPECT_TRUE(d_x.alike());
    EXPECT_TRUE(d_weight.alike());
    EXPECT_TRUE(d_bias.alike());
  }

  ThreadPool pool_{1};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Backend> gpu_, host_;
  RandomValues random_{11};
  std::vector<int32_t> tokens_, targets_;
};

INSTANTIATE_TEST_SUITE_P(Types, BackendOnGpu, testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& tested) { return std::string(name(tested.param)); });

TEST_P(BackendOnGpu, Norms) {
  for (const bool centred : {true, false}) {
    // Rows of most widths are held in registers. The others have no packs of four elements, or too many.
    for (const int64_t width : {1, 37, 256, 768, 1030, 1280, 2048, 2052}) {
      SCOPED_TRACE(testing::Message() << (centred ? "layer" : "RMS") << " norm, width " << width);
      const int64_t rows = width > 1030 ? 9 : 71;
      Array x = random(rows * width, DType::kFloat32, 2), from = random(rows * width);
      Array weight = random(width, type()), bias = random(width, type());
      Array mean = zeros(rows), rstd = zeros(rows), to = zeros(rows * width, type()), dx = random(rows * width);
      Array d_weight = random(width, type()), d_bias = random(width, type());
      const auto forward = [&](Backend& loops, auto at, auto values) {
        loops.layer_norm_forward({at(x), values(weight), centred ? ConstValues(values(bias)) : ConstValues(),
                                  centred ? at(mean) : nullptr, at(rstd), values(to), rows, width, 1e-3f});
        for (const bool add : {false, true}) {
          loops.layer_norm_backward_weights({.x = at(x),
                                             .mean = centred ? at(mean) : nullptr,
                                             .rstd = at(rstd),
                                             .from = at(from),
                                             .weight = values(d_weight),
                                             .bias = centred ? values(d_bias) : Values(),
                                             .rows = rows,
                                             .width = width,
                                             .begin = 0,
                                             .end = width,
                                             .add = add});
          loops.layer_norm_backward(
              {at(x), values(weight), centred ? at(mean) : nullptr, at(rstd), at(from), at(dx), rows, width, add});
        }
      };
      forward(
          *host_, [](Array& a) { return a.host_as<float>(); }, [](Array& a) { return a.host(); });
      forward(
          *gpu_, [](Array& a) { return a.gpu_as<float>(); }, [](Array& a) { return a.gpu(); });
      EXPECT_TRUE(mean.alike());
      EXPECT_TRUE(rstd.alike(1e-5));
      EXPECT_TRUE(to.alike());
      // At width 1 the gradient of the input is zero except for rounding errors.
      if (width > 1) {
        EXPECT_TRUE(dx.alike(1e-5));
      }
      EXPECT_TRUE(d_weight.alike(std::max(1e-5, rounding_tolerance(type()))));
      EXPECT_TRUE(d_bias.alike());
    }
  }
}

TEST_P(BackendOnGpu, HeadNorms) {
  for (const int64_t width : {2, 33, 128}) {
    SCOPED_TRACE(width);
    const int64_t rows = 23, heads = 3, copied = 5, stride = heads * width + copied + 2;
    Array x = random(rows * stride, type(), 2), weight = random(width, type()), to = random(rows * stride, type());
    Array gradient = random(rows * stride, type()), rstd = zeros(rows * heads), d_weight = zeros(width);
    Array sum = random(width, type());
    const auto run = [&](Backend& loops, auto at, auto values) {
      loops.head_norms_forward(
          {values(x), values(weight), values(to), at(rstd), rows, heads, width, stride, copied, 1e-3f});
      loops.head_norms_backward_weight(
          {values(x), values(gradient), at(rstd), at(d_weight), rows, heads, width, stride, 0, width});
      loops.head_norms_backward({values(x), values(weight), values(gradient), at(rstd), rows, heads, width, stride});
      loops.sum_columns({values(sum), at(d_weight), 1, width, 0, width, true});
    };
    run(
        *host_, [](Array& a) { return a.host_as<float>(); }, [](Array& a) { return a.host(); });
    run(
        *gpu_, [](Array& a) { return a.gpu_as<float>(); }, [](Array& a) { return a.gpu(); });
    EXPECT_TRUE(rstd.alike(1e-5));
    EXPECT_TRUE(to.alike());
    EXPECT_TRUE(d_weight.alike(1e-5));
    EXPECT_TRUE(gradient.alike(std::max(1e-5, rounding_tolerance(type()))));
    EXPECT_TRUE(sum.alike(std::max(1e-5, rounding_tolerance(type()))));
  }
}

TEST_P(BackendOnGpu, Linear) {
  // The simulated cuBLASLt has no epilogues for 56 outputs.
  for (const int64_t outputs : {24, 56, 104}) {
    check_linear(outputs, false);
    check_linear(outputs, true);
  }
}
/// Checks both directions of a linear layer with a GELU, also with rows that are not aligned to 16 bytes.
TEST_P(BackendOnGpu, LinearWithGelu) {
  for (const int64_t hidden : {20, 24, 56, 104}) {
    SCOPED_TRACE(hidden);
    const int64_t rows = 33, width = 40;
    Array x = random(rows * width, type()), up = random(width * hidden, type(), 0.3f), bias = random(hidden, type());
    Array before = zeros(rows * hidden, type()), to = zeros(rows * hidden, type());
    Array down = random(hidden * width, type(), 0.3f), from = random(rows * width, type());
    Array d_before = zeros(rows * hidden, type()), scratch = product_scratch();
    const auto run = [&](Backend& loops, auto at, auto values, bool needs_gelu) {
      const Linear first{.weight = values(up),
                         .bias = values(bias),
                         .rows = rows,
                         .inputs = width,
                         .outputs = hidden,
                         .scratch = at(scratch)};
      const Linear second{.weight = values(down),
                          .bias = nullptr,
                          .rows = rows,
                          .inputs = hidden,
                          .outputs = width,
                          .scratch = at(scratch)};
      loops.linear_gelu_forward(first, values(x), values(before), values(to), needs_gelu);
      loops.linear_gelu_backward_input(second, values(from), values(before), values(d_before));
    };
    const auto host_at = [](Array& a) { return a.host_as<float>(); };
    const auto host_values = [](Array& a) { return a.host(); };
    const auto gpu_at = [](Array& a) { return a.gpu_as<float>(); };
    const auto gpu_values = [](Array& a) { return a.gpu(); };
    run(*host_, host_at, host_values, true);
    run(*gpu_, gpu_at, gpu_values, true);
    EXPECT_TRUE(before.alike());
    // The GPU may apply the GELU before it rounds.
    EXPECT_TRUE(to.alike(std::max(1e-5, 2 * rounding_tolerance(type()))));
    EXPECT_TRUE(d_before.alike(std::max(1e-5, 2 * rounding_tolerance(type()))));
    const std::vector<double> with_gelu = before.on_gpu();
    run(*gpu_, gpu_at, gpu_values, false);
    EXPECT_EQ(before.on_gpu(), with_gelu);
  }
}

/// The matrix product may add the bias. The cached cuBLASLt descriptor of a shape must not keep the bias of an earlier
/// call.
TEST_P(BackendOnGpu, LinearUsesTheBiasOfEachCall) {
  for (const int64_t outputs : {24, 64}) {
    SCOPED_TRACE(outputs);
    const int64_t rows = 33, inputs = 40;
    Array x = random(rows * inputs, type()), weight = random(inputs * outputs, type(), 0.3f);
    Array scratch = product_scratch();
    for (int call = 0; call < 2; ++call) {
      Array bias = random(outputs, type()), to = random(rows * outputs, type());
      const auto run = [&](Backend& loops, auto at, auto values) {
        const Linear linear{.weight = values(weight),
                            .bias = values(bias),
                            .rows = rows,
                            .inputs = inputs,
                            .outputs = outputs,
                            .scratch = at(scratch)};
        loops.linear_forward(linear, values(x), nullptr, values(to));
      };
      run(
          *host_, [](Array& a) { return a.host_as<float>(); }, [](Array& a) { return a.host(); });
      run(
          *gpu_, [](Array& a) { return a.gpu_as<float>(); }, [](Array& a) { return a.gpu(); });
      EXPECT_TRUE(to.alike()) << "call " << call;
    }
  }
}

TEST_P(BackendOnGpu, ElementwiseLayers) {
  struct Case {
    int64_t count, offset, input_offset;
  };
  // Aligned arrays, arrays with 7 elements before the first pack of 16 bits, and arrays without common packs.
  for (const Case& c : {Case{4099, 0, 0}, Case{4099, 1, 1}, Case{515, 0, 4}, Case{515, 3, 0}, Case{5, 1, 1}}) {
    SCOPED_TRACE(testing::Message() << c.count << " elements from " << c.offset << " and " << c.input_offset << " on");
    const int64_t all = c.count + 8;  // the layers must not change the elements before and after their own
    Array x = random(all, type(), 6), y = random(all, type()), g = random(all, type());
    Array gate = random(all, type(), 6), up = random(all, type()), both = random(all, type());
    Array wide = random(all), narrow = random(all, type());
    const auto run = [&](Backend& loops, auto values) {
      const auto own = [&](Array& a) { return values(a).from(c.offset); };
      const auto input = [&](Array& a) { return values(a).from(c.input_offset); };
      loops.gelu_forward(own(y), input(x), c.count);
      loops.gelu_backward(own(g), input(x), c.count);
      loops.gated_forward(own(both), {input(gate), own(up), c.count});
      loops.gated_backward(own(both), {input(gate), own(up), c.count});
      loops.convert(own(narrow), input(wide), c.count);
    };
    run(*host_, [](Array& a) { return a.host(); });
    run(*gpu_, [](Array& a) { return a.gpu(); });
    for (Array* array : {&y, &g, &both, &gate, &up}) EXPECT_TRUE(array->alike());
    EXPECT_TRUE(narrow.alike(0));
  }
}

TEST_P(BackendOnGpu, RotaryPositions) {
  const ModelShape shape{.family = ModelFamily::kLlama, .width = 48, .heads = 4, .kv_heads = 2};
  const int64_t sequence = 19, batch = 2, stride = 100, half = shape.head_width() / 2;
  Array x = random(batch * sequence * stride, type()), cosines = zeros(sequence * half), sines = zeros(sequence * half);
  for (const bool back : {false, true}) {
    const auto run = [&](Backend& loops, auto at, auto values) {
      loops.rotary_angles(shape, sequence, at(cosines), at(sines));
      loops.rotate(
          {batch, sequence, shape.heads + shape.kv_heads, shape.head_width(), stride, at(cosines), at(sines), back},
          values(x));
    };
    run(
        *host_, [](Array& a) { return a.host_as<float>(); }, [](Array& a) { return a.host(); });
    run(
        *gpu_, [](Array& a) { return a.gpu_as<float>(); }, [](Array& a) { return a.gpu(); });
    EXPECT_TRUE(cosines.alike(0));
    EXPECT_TRUE(sines.alike(0));
    EXPECT_TRUE(x.alike());
  }
}

TEST_P(BackendOnGpu, EmbeddingsAndPositions) {
  const int64_t batch = 3, sequence = 22, width = 37, entries = 29, context = 40, rows = batch * sequence;
  const int64_t own_entries = 11, first_entry = 9, own_rows = 31, first_row = 25;  // of a rank of a tensor group
  const TokenBatch ids = tokens(rows, entries);
  Array table = random(entries * width, type()), positions = random(context * width, type());
  Array from = random(rows * width), looked_up = zeros(rows * width), placed = zeros(rows * width);
  Array own_looked_up = random(rows * width), own_placed = zeros(own_rows * width);
  for (const bool add : {false, true}) {
    Array d_table = random(entries * width, type()), d_positions = random(context * width, type());
    Array d_own_table = random(own_entries * width, type()), d_own_positions = random(context * width, type());
    const auto run = [&](Backend& loops, auto at, auto values) {
      const EmbeddingRows embedding{loops.stage_tokens(ids).tokens, rows, width, entries};
      loops.embedding_forward(embedding, values(table), at(looked_up));
      loops.embedding_backward(embedding, at(from), values(d_table), add);
      const Positions where{rows, sequence, width, context};
      loops.positions_forward(where, values(positions), at(looked_up), at(placed));
      loops.positions_backward(where, at(from), values(d_positions), add);
      const EmbeddingRows own{embedding.tokens, rows, width, own_entries, first_entry};
      loops.embedding_forward(own, values(table), at(own_looked_up));
      loops.embedding_backward(own, at(from), values(d_own_table), add);
      const Positions own_where{own_rows, sequence, width, context, first_row};
      loops.positions_forward(own_where, values(positions), at(from), at(own_placed));
      loops.positions_backward(own_where, at(from), values(d_own_positions), add);
    };
    run(
        *host_, [](Array& a) { return a.host_as<float>(); }, [](Array& a) { return a.host(); });
    run(
        *gpu_, [](Array& a) { return a.gpu_as<float>(); }, [](Array& a) { return a.gpu(); });
    EXPECT_TRUE(looked_up.alike(0));
    EXPECT_TRUE(placed.alike(0));
    EXPECT_TRUE(own_looked_up.alike(0));
    EXPECT_TRUE(own_placed.alike(0));
    EXPECT_TRUE(d_own_table.alike(4 * rounding_tolerance(type())));
    EXPECT_TRUE(d_own_positions.alike(2 * rounding_tolerance(type())));
    // The host rounds a 16-bit gradient after adding each row.
    EXPECT_TRUE(d_table.alike(4 * rounding_tolerance(type())));
    EXPECT_TRUE(d_positions.alike(2 * rounding_tolerance(type())));
  }
}

/// Rows from a later position are the rows of all positions, in any order of calls.
TEST_P(BackendOnGpu, RotaryAnglesFromALaterPosition) {
  const ModelShape plain{.family = ModelFamily::kLlama, .width = 48, .heads = 4, .kv_heads = 2, .context = 40};
  ModelShape dynamic = plain;
  dynamic.rope.scaling = RopeScaling::kDynamic;
  dynamic.rope.factor = 2;
  for (const ModelShape& shape : {plain, dynamic}) {
    const int64_t half = shape.head_width() / 2;
    const auto backend = make_cuda_backend(*device_);
    backend->compute_on(*stream_);
    for (const auto& [sequence, first] : {std::pair{7, 0}, std::pair{8, 7}, std::pair{300, 290}, std::pair{9, 8},
                                          std::pair{60, 3}, std::pair{301, 300}}) {
      Array cosines = zeros((sequence - first) * half), sines = zeros((sequence - first) * half);
      host_->rotary_angles(shape, sequence, cosines.host_as<float>(), sines.host_as<float>(), first);
      backend->rotary_angles(shape, sequence, cosines.gpu_as<float>(), sines.gpu_as<float>(), first);
      EXPECT_TRUE(cosines.alike(0)) << sequence << " " << first;
      EXPECT_TRUE(sines.alike(0)) << sequence << " " << first;
    }
  }
}

/// The loss and its gradients in double, from logits that are rounded to their type, as on a GPU.
struct PlainLoss {
  double sum = 0;
  std::vector<double> maxima, log_sums, d_hidden, d_table;

  /// `d_table` is the gradient to which that of the table is added.
  PlainLoss(const LossShape& shape, Array& hidden, Array& table, const std::vector<int32_t>& targets, double factor,
            std::vector<double> d_table_before)
      : d_table(std::move(d_table_before)), shape_(shape), hidden_(hidden.on_host()), table_(table.on_host()) {
    d_hidden.resize(hidden_.size());
    for (int64_t row = 0; row < shape.rows; ++row)
      add_row(row, targets[static_cast<size_t>(row)], factor, hidden.host().type);
  }

 private:
  static double rounded(double value, DType type) {
    const auto single = static_cast<float>(value);
    if (type == DType::kFloat32) return single;
    return type == DType::kFloat16 ? fp16_to_float(float_to_fp16(single)) : bf16_to_float(float_to_bf16(single));
  }
  void add_row(int64_t row, int32_t target, double factor, DType type) {
    const double* x = hidden_.data() + row * shape_.width;
    std::vector<double> logits(static_cast<size_t>(shape_.entries));
    for (size_t e = 0; e < logits.size(); ++e) {
      const double* of_entry = table_.data() + static_cast<int64_t>(e) * shape_.width;
      logits[e] = rounded(std::inner_product(x, x + shape_.width, of_entry, 0.0), type);
    }
    const double most = *std::max_element(logits.begin(), logits.end());
    double total = 0;
    for (const double logit : logits) total += std::exp(logit - most);
    maxima.push_back(most);
    log_sums.push_back(std::log(total));
    if (target == kIgnoredTarget) factor = 0;
    if (target != kIgnoredTarget) sum += most + log_sums.back() - logits[static_cast<size_t>(target)];
    const auto width = static_cast<size_t>(shape_.width);
    for (size_t e = 0; e < logits.size(); ++e) {
      const double probability = std::exp(logits[e] - most) / total, is_target = static_cast<int32_t>(e) == target;
      const double gradient = rounded((probability - is_target) * factor, type);
      for (size_t c = 0; c < width; ++c) {
        d_hidden[static_cast<size_t>(row) * width + c] += gradient * table_[e * width + c];
        d_table[e * width + c] += gradient * x[c];
      }
    }
  }

  LossShape shape_;
  std::vector<double> hidden_, table_;
};

/// Computes the loss of a vocabulary in two parts, as the ranks of a tensor group do.
TEST_P(BackendOnGpu, LossInParts) {
  const int64_t entries = kLossTileEntries + 57, first = 40;
  const std::array parts = {LossShape{9, 16, first}, LossShape{9, 16, entries - first, true, first}};
  const LossShape whole{9, 16, entries};
  const TokenBatch ids = tokens(whole.rows, entries);
  targets_[4] = kIgnoredTarget;
  Array hidden = random(whole.rows * whole.width, type(), 3), table = random(entries * whole.width, type());
  Array logits = zeros(whole.logits_elements(), type()), maxima = zeros(whole.rows), log_sums = zeros(whole.rows);
  Array scratch = zeros(2 * whole.rows), products = product_scratch(), statistics = zeros(6 * whole.rows);
  std::array d_hidden = {zeros(whole.rows * whole.width), zeros(whole.rows * whole.width)};
  Array d_table = random(entries * whole.width);
  const PlainLoss expected(whole, hidden, table, targets_, 0.25, d_table.on_host());
  const int32_t* targets = gpu_->stage_tokens(ids).targets;
  std::vector<LossForward> losses;
  for (const LossShape& shape : parts) {
    const LossBuffers buffers{.logits = logits.gpu().from(shape.first_entry * shape.rows),
                              .maxima = maxima.gpu_as<float>(),
                              .log_sums = log_sums.gpu_as<float>(),
                              .scratch = scratch.gpu_as<float>(),
                              .product_scratch = products.gpu_as<float>()};
    losses.push_back({shape, hidden.gpu(), table.gpu().from(shape.first_entry * shape.width), targets, buffers});
    gpu_->loss_statistics(losses.back(),
                          statistics.gpu_as<float>() + (shape.first_entry > 0 ? split_part_elements(shape.rows) : 0));
  }
  gpu_->loss_of_parts(losses[0], {2, statistics.gpu_as<float>()});
  EXPECT_NEAR(gpu_->loss_sum(), expected.sum, 1e-5 * expected.sum);
  for (size_t part = 0; part < losses.size(); ++part) {
    const LossForward& a = losses[part];
    gpu_->loss_backward({a.shape, a.hidden, a.table, targets, a.buffers, 0.25f, d_hidden[part].gpu_as<float>(),
                         d_table.gpu().from(a.shape.first_entry * whole.width), true});
  }
  EXPECT_TRUE(all_close(maxima.on_gpu(), expected.maxima, 1e-5));
  EXPECT_TRUE(all_close(log_sums.on_gpu(), expected.log_sums, 1e-5));
  std::vector<double> sum = d_hidden[0].on_gpu(), other = d_hidden[1].on_gpu();
  std::ranges::transform(sum, other, sum.begin(), std::plus());
  EXPECT_TRUE(all_close(sum, expected.d_hidden, 2 * rounding_tolerance(type())));
  EXPECT_TRUE(all_close(d_table.on_gpu(), expected.d_table, rounding_tolerance(type())));
}

/// Rows of logits that begin at multiples of 128 bytes, and rows that do not.
TEST_P(BackendOnGpu, LossInTiles) {
  constexpr int64_t kRows = 9, kWidth = 16;
  for (const int64_t entries : {int64_t{50}, 2 * kLossTileEntries + 7}) {
    const TokenBatch ids = tokens(kRows, entries);
    targets_[4] = kIgnoredTarget;
    Array hidden = random(kRows * kWidth, type(), 3), table = random(entries * kWidth, type());
    std::vector<double> first_log_sums, first_gradient;
    for (const auto& [keep_logits, stride] :
         {std::pair<bool, int64_t>{true, 0}, {true, (entries + 63) / 64 * 64}, {false, 0}}) {
      SCOPED_TRACE(testing::Message() << entries << " entries, stride " << stride
                                      << (keep_logits ? "" : ", logits computed twice"));
      const LossShape shape{
          .rows = kRows, .width = kWidth, .entries = entries, .keep_logits = keep_logits, .logit_stride = stride};
      Array logits = zeros(shape.logits_elements(), type()), maxima = zeros(shape.rows), log_sums = zeros(shape.rows);
      Array scratch = zeros(2 * shape.rows), products = product_scratch();
      Array d_hidden = zeros(shape.rows * shape.width), d_table = random(entries * shape.width);
      const PlainLoss expected(shape, hidden, table, targets_, 0.25, d_table.on_host());
      const LossBuffers buffers{.logits = logits.gpu(),
                                .maxima = maxima.gpu_as<float>(),
                                .log_sums = log_sums.gpu_as<float>(),
                                .scratch = scratch.gpu_as<float>(),
                                .product_scratch = products.gpu_as<float>()};
      const int32_t* targets = gpu_->stage_tokens(ids).targets;
      gpu_->loss_forward({shape, hidden.gpu(), table.gpu(), targets, buffers});
      EXPECT_NEAR(gpu_->loss_sum(), expected.sum, 1e-5 * expected.sum);
      gpu_->loss_backward(
          {shape, hidden.gpu(), table.gpu(), targets, buffers, 0.25f, d_hidden.gpu_as<float>(), d_table.gpu(), true});
      EXPECT_TRUE(all_close(log_sums.on_gpu(), expected.log_sums, 1e-5));
      EXPECT_TRUE(all_close(d_hidden.on_gpu(), expected.d_hidden, 2 * rounding_tolerance(type())));
      EXPECT_TRUE(all_close(d_table.on_gpu(), expected.d_table, rounding_tolerance(type())));
      // The bits do not depend on where the logits are, nor on whether they are kept. On a real GPU, cuBLASLt may
      // choose another algorithm for another stride.
      if (!device_->describe().starts_with("simulated")) continue;
      if (first_log_sums.empty()) {
        first_log_sums = log_sums.on_gpu();
        first_gradient = d_hidden.on_gpu();
      }
      EXPECT_EQ(log_sums.on_gpu(), first_log_sums);
      EXPECT_EQ(d_hidden.on_gpu(), first_gradient);
    }
  }
}

}  // namespace
}  // namespace aliquot::test
