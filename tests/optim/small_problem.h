#pragma once
// A small training problem on which optimizers differ: a two-layer network learns the outputs of another one.

#include <cmath>
#include <random>
#include <vector>

namespace aliquot {

/// The network tanh(x W1) W2. `weights` holds W1 (kIn x kHidden) and then W2 (kHidden x kOut).
class SmallProblem {
 public:
  static constexpr int kIn = 16, kHidden = 64, kOut = 8, kBatch = 32;
  static constexpr int kFirst = kIn * kHidden, kWeights = kFirst + kHidden * kOut;  // both multiples of the block size

  SmallProblem() : teacher_(kWeights), weights(kWeights), gradient(kWeights) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& w : teacher_) w = normal(random) * 0.5f;
    for (float& w : weights) w = normal(random) * 0.2f;
  }

  /// Returns the loss of the batch of `step`, and sets `gradient`.
  double loss(unsigned step) {
    std::mt19937 random(1000 + step);
    std::normal_distribution<float> normal;
    std::fill(gradient.begin(), gradient.end(), 0.0f);
    double sum = 0.0;
    for (int b = 0; b < kBatch; ++b) {
      float x[kIn], hidden[kHidden], unused[kHidden], answer[kOut], own[kOut];
      for (float& of : x) of = normal(random);
      forward(teacher_, x, unused, answer);
      forward(weights, x, hidden, own);
      for (int o = 0; o < kOut; ++o) {
        own[o] = (own[o] - answer[o]) / kBatch;
        sum += double{own[o]} * own[o] * kBatch;
      }
      backward(x, hidden, own);
    }
    return sum / kOut;
  }

 private:
  std::vector<float> teacher_;

 public:
  std::vector<float> weights, gradient;

 private:
  static void forward(const std::vector<float>& w, const float* x, float* hidden, float* out) {
    for (int h = 0; h < kHidden; ++h) {
      float sum = 0.0f;
      for (int i = 0; i < kIn; ++i) sum += x[i] * w[static_cast<size_t>(i * kHidden + h)];
      hidden[h] = std::tanh(sum);
    }
    for (int o = 0; o < kOut; ++o) {
      out[o] = 0.0f;
      for (int h = 0; h < kHidden; ++h) out[o] += hidden[h] * w[static_cast<size_t>(kFirst + h * kOut + o)];
    }
  }

  void backward(const float* x, const float* hidden, const float* of_out) {
    for (int h = 0; h < kHidden; ++h) {
      float of_hidden = 0.0f;
      for (int o = 0; o < kOut; ++o) {
        const auto at = static_cast<size_t>(kFirst + h * kOut + o);
        gradient[at] += hidden[h] * of_out[o];
        of_hidden += weights[at] * of_out[o];
      }
      of_hidden *= 1.0f - hidden[h] * hidden[h];
      for (int i = 0; i < kIn; ++i) gradient[static_cast<size_t>(i * kHidden + h)] += x[i] * of_hidden;
    }
  }
};

}  // namespace aliquot
