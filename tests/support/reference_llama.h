#pragma once
// Reference implementation of Llama and the model types with the same blocks, in double precision, forward only.

#include <numbers>

#include "tests/support/reference_layers.h"

namespace aliquot::test {

inline Doubles reference_rms_norm(const Doubles& x, const Doubles& weight, double epsilon = 1e-5) {
  const size_t width = weight.size();
  Doubles y(x.size());
  for (size_t row = 0; row < x.size(); row += width) {
    double square = 0;
    for (size_t i = 0; i < width; ++i) square += x[row + i] * x[row + i] / static_cast<double>(width);
    for (size_t i = 0; i < width; ++i) y[row + i] = x[row + i] / std::sqrt(square + epsilon) * weight[i];
  }
  return y;
}

/// `weight` has the shape [outputs, inputs].
inline Doubles reference_linear_without_bias(const Doubles& x, const Doubles& weight, int64_t inputs) {
  const auto in = static_cast<size_t>(inputs);
  const size_t outputs = weight.size() / in, rows = x.size() / in;
  Doubles y(rows * outputs);
  for (size_t i = 0; i < y.size(); ++i) {
    for (size_t k = 0; k < in; ++k) y[i] += x[i / outputs * in + k] * weight[i % outputs * in + k];
  }
  return y;
}

inline double reference_silu(double x) { return x / (1 + std::exp(-x)); }

/// Yarn divides the angles of pairs after `high` by the factor and keeps those of pairs before `low`.
inline double reference_yarn_speed(double speed, int64_t pair, int64_t head_width, const Rope& rope) {
  const auto pair_of = [&](double turns) {
    return static_cast<double>(head_width) / 2 *
           std::log(static_cast<double>(rope.original_context) / (2 * std::numbers::pi * turns)) / std::log(rope.theta);
  };
  double low = pair_of(rope.beta_fast), high = pair_of(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(head_width - 1));
  const double x = std::clamp((static_cast<double>(pair) - low) / (high == low ? 0.001 : high - low), 0.0, 1.0);
  return (1 - x) * speed + x * speed / rope.factor;
}

/// Returns the rotation angle per position. For long contexts, Llama 3.1 reduces this angle. The reduction differs
/// between three ranges of the wavelength.
inline double reference_rotary_speed(int64_t pair, const ModelShape& shape, int64_t sequence) {
  const Rope& rope = shape.rope;
  const auto width = static_cast<double>(shape.head_width());
  const auto speed_of = [&](double theta) { return 1 / std::pow(theta, 2.0 * static_cast<double>(pair) / width); };
  const double speed = speed_of(rope.theta);
  if (rope.scaling == RopeScaling::kNone) return speed;
  if (rope.scaling == RopeScaling::kLinear) return speed / rope.factor;
  if (rope.scaling == RopeScaling::kYarn) return reference_yarn_speed(speed, pair, shape.head_width(), rope);
  if (rope.scaling == RopeScaling::kDynamic) {
    const double length = static_cast<double>(std::max(sequence, shape.context)) / static_cast<double>(shape.context);
    return speed_of(rope.theta * std::pow(rope.factor * length - rope.factor + 1, width / (width - 2)));
  }
  const double wave = 2 * std::numbers::pi / speed, context = static_cast<double>(rope.original_context);
  if (wave < context / rope.high_freq_factor) return speed;
  if (wave > context / rope.low_freq_factor) return speed / rope.factor;
  const double smooth = (context / wave - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * speed / rope.factor + smooth * speed;
}

/// Rotates pairs of elements i and i + head_width / 2 of each head. The angle depends on the position of the row.
inline void reference_rotate(Doubles& x, const ModelShape& shape, int64_t heads, int64_t sequence) {
  const int64_t width = shape.head_width(), half = width / 2;
  for (size_t i = 0; i < x.size(); i += static_cast<size_t>(width)) {
    const auto position = static_cast<int64_t>(i) / (heads * width) % sequence;
    for (int64_t pair = 0; pair < half; ++pair) {
      const double angle = static_cast<double>(position) * reference_rotary_speed(pair, shape, sequence);
      double &a = x[i + static_cast<size_t>(pair)], &b = x[i + static_cast<size_t>(pair + half)];
      const double first = a * shape.rope.attention_factor, second = b * shape.rope.attention_factor;
      a = first * std::cos(angle) - second * std::sin(angle);
      b = second * std::cos(angle) + first * std::sin(angle);
    }
  }
}

/// Concatenates q, k and v as reference_attention() expects them. Repeats keys and values that several query heads use.
inline Doubles reference_concatenate_qkv(const ModelShape& s, const Doubles& q, const Doubles& k, const Doubles& v) {
  const size_t rows = q.size() / static_cast<size_t>(s.query_width());
  Doubles qkv;
  for (size_t row = 0; row < rows; ++row) {
    for (const Doubles* part : {&q, &k, &v}) {
      const int64_t shared = part == &q ? 1 : s.heads / s.kv_heads;
      const size_t stride = part->size() / rows;
      for (int64_t i = 0; i < s.query_width(); ++i) {
        const int64_t head = i / s.head_width() / shared;
        qkv.push_back((*part)[row * stride + static_cast<size_t>(head * s.head_width() + i % s.head_width())]);
      }
    }
  }
  return qkv;
}

/// Returns the output of attention of one layer. `p` returns a parameter of the layer's self_attn.
template <class Parameter>
Doubles reference_llama_attention(const ModelShape& shape, int64_t layer, const Doubles& x, int64_t batch,
                                  const Parameter& p) {
  const int64_t sequence = static_cast<int64_t>(x.size()) / shape.width / batch;
  const auto project = [&](const Doubles& from, const std::string& name, int64_t inputs, bool biased) {
    Doubles y = reference_linear_without_bias(from, p(name + "_proj.weight"), inputs);
    if (!biased) return y;
    const Doubles bias = p(name + "_proj.bias");
    for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i % bias.size()];
    return y;
  };
  Doubles q = project(x, "q", shape.width, shape.qkv_bias), k = project(x, "k", shape.width, shape.qkv_bias);
  const Doubles v = project(x, "v", shape.width, shape.qkv_bias);
  if (shape.qk_norm) {
    q = reference_rms_norm(q, p("q_norm.weight"), shape.norm_epsilon);
    k = reference_rms_norm(k, p("k_norm.weight"), shape.norm_epsilon);
  }
  reference_rotate(q, shape, shape.heads, sequence);
  reference_rotate(k, shape, shape.kv_heads, sequence);
  const Doubles mixed = reference_attention(reference_concatenate_qkv(shape, q, k, v), batch, sequence, shape.heads,
                                            shape.head_width(), shape.window_of(layer));
  return project(mixed, "o", shape.query_width(), shape.output_bias);
}

/// Returns the loss of the full model. Parameters have their Hugging Face names.
inline double reference_llama_loss(const ModelShape& shape, const std::map<std::string, Doubles>& parameters,
                                   int64_t batch, const std::vector<int32_t>& tokens,
                                   const std::vector<int32_t>& targets) {
  const auto width = static_cast<size_t>(shape.width);
  const Doubles& table = parameters.at("model.embed_tokens.weight");
  Doubles x(tokens.size() * width);
  for (size_t i = 0; i < x.size(); ++i) x[i] = table[static_cast<size_t>(tokens[i / width]) * width + i % width];
  const auto add = [&x](const Doubles& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  };
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const auto p = [&](const std::string& name) {
      return parameters.at("model.layers." + std::to_string(layer) + "." + name + ".weight");
    };
    const Doubles normal = reference_rms_norm(x, p("input_layernorm"), shape.norm_epsilon);
    add(reference_llama_attention(shape, layer, normal, batch, [&](const std::string& name) {
      return parameters.at("model.layers." + std::to_string(layer) + ".self_attn." + name);
    }));
    const Doubles middle = reference_rms_norm(x, p("post_attention_layernorm"), shape.norm_epsilon);
    Doubles hidden = reference_linear_without_bias(middle, p("mlp.gate_proj"), shape.width);
    const Doubles up = reference_linear_without_bias(middle, p("mlp.up_proj"), shape.width);
    for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = reference_silu(hidden[i]) * up[i];
    add(reference_linear_without_bias(hidden, p("mlp.down_proj"), shape.hidden));
  }
  const Doubles& head = shape.tied ? table : parameters.at("lm_head.weight");
  return reference_loss(reference_rms_norm(x, parameters.at("model.norm.weight"), shape.norm_epsilon), head, targets);
}

}  // namespace aliquot::test
