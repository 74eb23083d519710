// Compares the loss on a GPU with plain loops.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <numeric>
#include <vector>

#include "kernels/formats/float16.h"
#include "tests/apps/models/backend_on_gpu.h"
#include "tests/support/all_close.h"

namespace aliquot::test {
namespace {

class LossOnGpu : public BackendOnGpu {};
INSTANTIATE_TEST_SUITE_P(Types, LossOnGpu, kComputeTypes, type_name);

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
TEST_P(LossOnGpu, InParts) {
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

/// Kept logits as one matrix or as one matrix for each tile, and logits that are computed twice.
TEST_P(LossOnGpu, InTiles) {
  constexpr int64_t kRows = 9, kWidth = 16;
  for (const int64_t entries : {int64_t{50}, 2 * kLossTileEntries + 7}) {
    const TokenBatch ids = tokens(kRows, entries);
    targets_[4] = kIgnoredTarget;
    Array hidden = random(kRows * kWidth, type(), 3), table = random(entries * kWidth, type());
    std::vector<double> first_log_sums, first_gradient;
    for (const auto& [keep_logits, row_multiple] :
         {std::pair<bool, int64_t>{true, 64}, {false, 64}, {true, 0}, {false, 0}}) {
      SCOPED_TRACE(testing::Message() << entries << " entries, multiples of " << row_multiple
                                      << (keep_logits ? "" : ", logits computed twice"));
      const LossShape shape{
          .rows = kRows, .width = kWidth, .entries = entries, .keep_logits = keep_logits, .row_multiple = row_multiple};
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
      if (row_multiple == 0 && !device_->describe().starts_with("simulated")) continue;
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
