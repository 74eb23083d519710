#pragma once
// Combines the statistics of a row that several ranks computed. Host and GPU use the same code.

#include <cmath>
#include <cstdint>

#include "kernels/formats/host_device.h"
#include "kernels/layers/split_layers.h"

namespace aliquot {

/// The statistics of a row of logits over the whole vocabulary.
struct RowStatistics {
  float maximum = -INFINITY, sum = 0, target_logit = 0;
};

/// Parts without entries have a sum of 0.
ALIQUOT_HOST_DEVICE RowStatistics combined_row(const SplitParts& parts, int64_t rows, int64_t row) {
  RowStatistics all;
  const float* part = parts.statistics + row;
  for (int p = 0; p < parts.count; ++p) all.maximum = fmaxf(all.maximum, part[3 * p * rows]);
  for (int p = 0; p < parts.count; ++p) {
    const float* at = part + 3 * p * rows;
    const double scale = at[rows] == 0.0f ? 0.0 : exp(static_cast<double>(at[0]) - static_cast<double>(all.maximum));
    all.sum += at[rows] * static_cast<float>(scale);
    all.target_logit += at[2 * rows];
  }
  return all;
}

/// Stores the log of the sum, and returns the loss of the row. The loss of an ignored target is 0.
ALIQUOT_HOST_DEVICE double row_loss(const RowStatistics& row, int32_t target, float* log_sum) {
  const double log_of_sum = log(static_cast<double>(row.sum));
  *log_sum = static_cast<float>(log_of_sum);
  if (target == kIgnoredTarget) return 0.0;
  return log_of_sum + (static_cast<double>(row.maximum) - static_cast<double>(row.target_logit));
}

/// A value of the statistics of a norm, added over all parts.
ALIQUOT_HOST_DEVICE float sum_over_parts(const SplitParts& parts, int64_t rows, int64_t row, int value) {
  float sum = 0.0f;
  for (int p = 0; p < parts.count; ++p) sum += parts.statistics[(3 * p + value) * rows + row];
  return sum;
}

/// The mean and the variance of a whole row. For an RMS norm, the mean is 0, and the variance is the mean square.
struct RowMoments {
  float mean = 0, variance = 0;
};

/// Combines the statistics of split_norm_statistics().
ALIQUOT_HOST_DEVICE RowMoments combined_moments(const SplitParts& parts, int64_t rows, int64_t row) {
  const float count = sum_over_parts(parts, rows, row, 2), mean = sum_over_parts(parts, rows, row, 0) / count;
  float squares = 0.0f;
  for (int p = 0; p < parts.count; ++p) {
    const float* part = parts.statistics + 3 * p * rows + row;
    const float columns = part[2 * rows];
    if (columns == 0.0f) continue;
    const float apart = part[0] / columns - mean;
    squares += part[rows] + columns * (apart * apart);
  }
  return {mean, squares / count};
}

/// The means over a whole row of the gradients g and of g n: see split_norm_backward_statistics().
struct RowGradientMeans {
  float gradient = 0, with_normal = 0;
};

ALIQUOT_HOST_DEVICE RowGradientMeans combined_gradient_means(const SplitParts& parts, int64_t rows, int64_t row) {
  const float scale = 1.0f / sum_over_parts(parts, rows, row, 2);
  return {sum_over_parts(parts, rows, row, 0) * scale, sum_over_parts(parts, rows, row, 1) * scale};
}

}  // namespace aliquot
