#include "tests/engine/small_model.h"

#include <bit>
#include <cmath>

#include "kernels/elementwise/host_loops.h"

namespace aliquot::testing_model {
namespace {

/// The tensors of a use: the weight and bias of its layer. The first and last use also have the scale.
std::vector<int> tensors_of(int use) {
  std::vector<int> tensors;
  if (use == 0 || use == kLayers) tensors.push_back(0);
  if (use > 0) tensors.insert(tensors.end(), {2 * use - 1, 2 * use});
  return tensors;
}

}  // namespace

int64_t element_count(int tensor) {
  const std::vector<Shape> all = shapes();
  int64_t count = 1;
  for (const int64_t extent : all[tensor].shape) count *= extent;
  return count;
}

void SmallModel::corrupt_hidden() {
  float& first = hidden_[1].front();
  first = std::bit_cast<float>(std::bit_cast<uint32_t>(first) ^ 1u << 12);
}

void SmallModel::open(int use, const Tensors& values, const Tensors* gradients) {
  const HostLoops& loops = host_loops(Isa::kPlain);
  for (const int t : tensors_of(use)) {
    v_[t] = static_cast<float*>(values.at[t]);
    if (precision_.compute != DType::kFloat32) {
      wide_[t].resize(element_count(t));
      loops.cast(wide_[t].data(), DType::kFloat32, values.at[t], precision_.compute, element_count(t));
      v_[t] = wide_[t].data();
    }
    if (gradients == nullptr) continue;
    g_[t] = static_cast<float*>(gradients->at[t]);
    if (precision_.gradients != DType::kFloat32 || frozen[t]) {
      sums_[t].assign(element_count(t), 0.0f);
      g_[t] = sums_[t].data();
    }
  }
}

void SmallModel::close(int use, const Tensors& gradients) {
  if (precision_.gradients == DType::kFloat32) return;
  const HostLoops& loops = host_loops(Isa::kPlain);
  for (const int t : tensors_of(use)) {
    if (frozen[t]) continue;
    std::vector<float> before(element_count(t));
    loops.cast(before.data(), DType::kFloat32, gradients.at[t], precision_.gradients, element_count(t));
    loops.add(before.data(), sums_[t].data(), element_count(t));
    loops.cast(gradients.at[t], precision_.gradients, before.data(), DType::kFloat32, element_count(t));
  }
}

void SmallModel::forward(int use, std::span<const float> samples, const Tensors& values) {
  open(use, values, nullptr);
  if (use == 0) {
    const int64_t width = kWidths[0];
    samples_ = static_cast<int64_t>(samples.size()) / (2 * width);
    input_.assign(samples.begin(), samples.begin() + samples_ * width);
    target_.assign(samples.begin() + samples_ * width, samples.end());
    scaled_.resize(input_.size());
    for (int64_t i = 0; i < samples_ * width; ++i) scaled_[i] = input_[i] * v_[0][i % width];
    return;
  }
  layer_forward(use - 1);
  if (use != kLayers) return;
  const int64_t width = kWidths[kLayers];
  output_grad_.resize(samples_ * width);
  loss_ = 0;
  for (int64_t i = 0; i < samples_ * width; ++i) {
    output_grad_[i] = hidden_[kLayers - 1][i] * v_[0][i % width] - target_[i];
    loss_ += 0.5 * output_grad_[i] * output_grad_[i];
  }
}

void SmallModel::layer_forward(int layer) {
  const int64_t in = kWidths[layer], out = kWidths[layer + 1];
  const std::vector<float>& from = layer == 0 ? scaled_ : hidden_[layer - 1];
  hidden_[layer].resize(samples_ * out);
  for (int64_t s = 0; s < samples_; ++s) {
    for (int64_t o = 0; o < out; ++o) {
      float sum = v_[2 + 2 * layer][o];
      for (int64_t i = 0; i < in; ++i) sum += v_[1 + 2 * layer][o * in + i] * from[s * in + i];
      hidden_[layer][s * out + o] = layer == kLayers - 1 ? sum : std::tanh(sum);
    }
  }
}

void SmallModel::backward(int use, float loss_scale, const Tensors& values, const Tensors& gradients) {
  const int64_t width = kWidths[0];
  open(use, values, &gradients);
  if (use == 0) {
    for (int64_t i = 0; i < samples_ * width; ++i) g_[0][i % width] += grad_hidden_[0][i] * input_[i];
    return close(use, gradients);
  }
  if (use == kLayers) {
    grad_hidden_[kLayers].resize(samples_ * width);
    for (int64_t i = 0; i < samples_ * width; ++i) {
      const float of_output = output_grad_[i] * loss_scale;
      g_[0][i % width] += of_output * hidden_[kLayers - 1][i];
      grad_hidden_[kLayers][i] = of_output * v_[0][i % width];
    }
  }
  layer_backward(use - 1);
  close(use, gradients);
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
      g_[2 + 2 * layer][o] += g;
      for (int64_t i = 0; i < in; ++i) {
        g_[1 + 2 * layer][o * in + i] += g * from[s * in + i];
        grad_in[s * in + i] += g * v_[1 + 2 * layer][o * in + i];
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
