#include "tests/engine/small_model.h"

#include <cmath>

namespace aliquot::testing_model {

void SmallModel::forward(int use, std::span<const float> samples) {
  if (use == 0) {
    const int64_t width = kWidths[0];
    samples_ = static_cast<int64_t>(samples.size()) / (2 * width);
    input_.assign(samples.begin(), samples.begin() + samples_ * width);
    target_.assign(samples.begin() + samples_ * width, samples.end());
    scaled_.resize(input_.size());
    for (int64_t i = 0; i < samples_ * width; ++i) scaled_[i] = input_[i] * value.scale[i % width];
    return;
  }
  layer_forward(use - 1);
  if (use != kLayers) return;
  const int64_t width = kWidths[kLayers];
  output_grad_.resize(samples_ * width);
  loss_ = 0;
  for (int64_t i = 0; i < samples_ * width; ++i) {
    output_grad_[i] = hidden_[kLayers - 1][i] * value.scale[i % width] - target_[i];
    loss_ += 0.5 * output_grad_[i] * output_grad_[i];
  }
}

void SmallModel::layer_forward(int layer) {
  const int64_t in = kWidths[layer], out = kWidths[layer + 1];
  const std::vector<float>& from = layer == 0 ? scaled_ : hidden_[layer - 1];
  hidden_[layer].resize(samples_ * out);
  for (int64_t s = 0; s < samples_; ++s) {
    for (int64_t o = 0; o < out; ++o) {
      float sum = value.bias[layer][o];
      for (int64_t i = 0; i < in; ++i) sum += value.weight[layer][o * in + i] * from[s * in + i];
      hidden_[layer][s * out + o] = layer == kLayers - 1 ? sum : std::tanh(sum);
    }
  }
}

void SmallModel::backward(int use) {
  const int64_t width = kWidths[0];
  if (use == 0) {
    for (int64_t i = 0; i < samples_ * width; ++i) gradient.scale[i % width] += grad_hidden_[0][i] * input_[i];
    return;
  }
  if (use == kLayers) {
    grad_hidden_[kLayers].resize(samples_ * width);
    for (int64_t i = 0; i < samples_ * width; ++i) {
      gradient.scale[i % width] += output_grad_[i] * hidden_[kLayers - 1][i];
      grad_hidden_[kLayers][i] = output_grad_[i] * value.scale[i % width];
    }
  }
  layer_backward(use - 1);
}

void SmallModel::layer_backward(int layer) {
  const int64_t in = kWidths[layer], out = kWidths[layer + 1];
  const std::vector<float>& from = layer == 0 ? scaled_ : hidden_[layer - 1];
  const std::vector<float>& grad_out = grad_hidden_[layer + 1];
  std::vector<float>& grad_in = grad_hidden_[layer];
  grad_in.assign(samples_ * in, 0.0f);
  for (int64_t s = 0; s < samples_; ++s) {
    for (int64_t o = 0; o < out; ++o) {
      const float h = hidden_[layer][s * out + o];
      const float g = layer == kLayers - 1 ? grad_out[s * out + o] : grad_out[s * out + o] * (1.0f - h * h);
      gradient.bias[layer][o] += g;
      for (int64_t i = 0; i < in; ++i) {
        gradient.weight[layer][o * in + i] += g * from[s * in + i];
        grad_in[s * in + i] += g * value.weight[layer][o * in + i];
      }
    }
  }
}

std::vector<Shape> shapes() {
  std::vector<Shape> all = {{"scale", "weight", {kWidths[0]}}};
  for (int l = 0; l < kLayers; ++l) {
    all.push_back({"layer." + std::to_string(l), "weight", {kWidths[l + 1], kWidths[l]}});
    all.push_back({"layer." + std::to_string(l), "bias", {kWidths[l + 1]}});
  }
  return all;
}

float initial_value(const std::string& name, int64_t element) {
  const auto seed = static_cast<double>(std::hash<std::string>{}(name) % 1000);
  return static_cast<float>(0.3 * std::sin(seed + 1.7 * static_cast<double>(element))) +
         (name == "scale.weight" ? 1.0f : 0.0f);
}

std::vector<float> samples(int64_t step, int micro_batch, int rank) {
  std::vector<float> all(2 * 2 * kWidths[0]);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<float>(
        std::cos(0.37 * static_cast<double>(i) + 11.0 * static_cast<double>(step) + 3.0 * micro_batch + 5.0 * rank));
  }
  return all;
}

}  // namespace aliquot::testing_model
