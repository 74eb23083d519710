#pragma once
// Reference implementation of GPT-2 in double precision, forward only. Gradients come from finite differences.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "apps/models/shape.h"

namespace aliquot::test {

using Doubles = std::vector<double>;

inline Doubles widen(const std::vector<float>& from) { return {from.begin(), from.end()}; }

inline Doubles reference_layer_norm(const Doubles& x, const Doubles& weight, const Doubles& bias,
                                    double epsilon = 1e-5) {
  const size_t width = weight.size();
  Doubles y(x.size());
  for (size_t row = 0; row < x.size(); row += width) {
    double mean = 0, variance = 0;
    for (size_t i = 0; i < width; ++i) mean += x[row + i] / static_cast<double>(width);
    for (size_t i = 0; i < width; ++i)
      variance += (x[row + i] - mean) * (x[row + i] - mean) / static_cast<double>(width);
    for (size_t i = 0; i < width; ++i)
      y[row + i] = (x[row + i] - mean) / std::sqrt(variance + epsilon) * weight[i] + bias[i];
  }
  return y;
}

/// `weight` has the shape [inputs, outputs].
inline Doubles reference_linear(const Doubles& x, const Doubles& weight, const Doubles& bias) {
  const size_t outputs = bias.size(), inputs = weight.size() / outputs, rows = x.size() / inputs;
  Doubles y(rows * outputs);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t o = 0; o < outputs; ++o) y[row * outputs + o] = bias[o];
    for (size_t i = 0; i < inputs; ++i) {
      for (size_t o = 0; o < outputs; ++o) y[row * outputs + o] += x[row * inputs + i] * weight[i * outputs + o];
    }
  }
  return y;
}

inline double reference_gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

/// `qkv` has the shape [batch, sequence, 3, heads, head_width]. A query attends to `window` positions; 0 means all
/// positions before it.
inline Doubles reference_attention(const Doubles& qkv, int64_t batch, int64_t sequence, int64_t heads,
                                   int64_t head_width, int64_t window = 0) {
  const int64_t width = heads * head_width;
  Doubles y(static_cast<size_t>(batch * sequence * width));
  Doubles scores(static_cast<size_t>(sequence));
  const auto at = [&](int64_t b, int64_t t, int64_t which, int64_t h, int64_t i) {
    return qkv[static_cast<size_t>(((b * sequence + t) * 3 + which) * width + h * head_width + i)];
  };
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t t = 0; t < sequence; ++t) {
        double largest = -std::numeric_limits<double>::infinity(), sum = 0;
        const int64_t begin = window == 0 ? 0 : std::max<int64_t>(0, t - window + 1);
        for (int64_t s = begin; s <= t; ++s) {
          double score = 0;
          for (int64_t i = 0; i < head_width; ++i) score += at(b, t, 0, h, i) * at(b, s, 1, h, i);
          scores[static_cast<size_t>(s)] = score / std::sqrt(static_cast<double>(head_width));
          largest = std::max(largest, scores[static_cast<size_t>(s)]);
        }
        for (int64_t s = begin; s <= t; ++s) sum += std::exp(scores[static_cast<size_t>(s)] - largest);
        for (int64_t s = begin; s <= t; ++s) {
          const double p = std::exp(scores[static_cast<size_t>(s)] - largest) / sum;
          for (int64_t i = 0; i < head_width; ++i) {
            y[static_cast<size_t>((b * sequence + t) * width + h * head_width + i)] += p * at(b, s, 2, h, i);
          }
        }
      }
    }
  }
  return y;
}

/// Returns the sum over rows of -log softmax(hidden table^T)[target].
inline double reference_loss(const Doubles& hidden, const Doubles& table, const std::vector<int32_t>& targets) {
  const size_t width = hidden.size() / targets.size(), entries = table.size() / width;
  double loss = 0;
  Doubles logits(entries);
  for (size_t row = 0; row < targets.size(); ++row) {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (size_t e = 0; e < entries; ++e) {
      logits[e] = 0;
      for (size_t i = 0; i < width; ++i) logits[e] += hidden[row * width + i] * table[e * width + i];
      largest = std::max(largest, logits[e]);
    }
    for (const double logit : logits) sum += std::exp(logit - largest);
    loss += largest + std::log(sum) - logits[static_cast<size_t>(targets[row])];
  }
  return loss;
}

/// Returns the loss of the full model. Parameters have their Hugging Face names.
inline double reference_gpt2_loss(const ModelShape& shape, const std::map<std::string, Doubles>& parameters,
                                  int64_t batch, const std::vector<int32_t>& tokens,
                                  const std::vector<int32_t>& targets) {
  const auto width = static_cast<size_t>(shape.width);
  const int64_t sequence = static_cast<int64_t>(tokens.size()) / batch;
  Doubles x(tokens.size() * width);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t row = i / width, column = i % width;
    x[i] = parameters.at("wte.weight")[static_cast<size_t>(tokens[row]) * width + column] +
           parameters.at("wpe.weight")[row % static_cast<size_t>(sequence) * width + column];
  }
  const auto add = [&x](const Doubles& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  };
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const auto p = [&](const std::string& name) { return parameters.at("h." + std::to_string(layer) + "." + name); };
    const auto norm = [&](const std::string& name) {
      return reference_layer_norm(x, p(name + ".weight"), p(name + ".bias"), shape.norm_epsilon);
    };
    const Doubles qkv = reference_linear(norm("ln_1"), p("attn.c_attn.weight"), p("attn.c_attn.bias"));
    add(reference_linear(reference_attention(qkv, batch, sequence, shape.heads, shape.head_width()),
                         p("attn.c_proj.weight"), p("attn.c_proj.bias")));
    Doubles hidden = reference_linear(norm("ln_2"), p("mlp.c_fc.weight"), p("mlp.c_fc.bias"));
    for (double& value : hidden) value = reference_gelu(value);
    add(reference_linear(hidden, p("mlp.c_proj.weight"), p("mlp.c_proj.bias")));
  }
  return reference_loss(
      reference_layer_norm(x, parameters.at("ln_f.weight"), parameters.at("ln_f.bias"), shape.norm_epsilon),
      parameters.at("wte.weight"), targets);
}

/// Computes the gradient of `loss` by central differences, element by element.
inline Doubles difference_gradient(Doubles x, const std::function<double(const Doubles&)>& loss, double step = 1e-5) {
  Doubles gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double value = x[i];
    x[i] = value + step;
    const double above = loss(x);
    x[i] = value - step;
    gradient[i] = (above - loss(x)) / (2 * step);
    x[i] = value;
  }
  return gradient;
}

}  // namespace aliquot::test
