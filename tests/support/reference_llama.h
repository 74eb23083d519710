#pragma once
// Reference implementation of Llama in double precision, forward only.

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

/// Returns the rotation angle per position. For long contexts, Llama 3.1 reduces this angle. The reduction differs
/// between three ranges of the wavelength.
inline double reference_rotary_speed(int64_t pair, int64_t head_width, const Rope& rope) {
  const double speed = 1 / std::pow(rope.theta, 2.0 * static_cast<double>(pair) / static_cast<double>(head_width));
  if (rope.scaling == RopeScaling::kNone) return speed;
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
      const double angle = static_cast<double>(position) * reference_rotary_speed(pair, width, shape.rope);
      double &a = x[i + static_cast<size_t>(pair)], &b = x[i + static_cast<size_t>(pair + half)];
      const double first = a, second = b;
      a = first * std::cos(angle) - second * std::sin(angle);
      b = second * std::cos(angle) + first * std::sin(angle);
    }
  }
}

/// Concatenates q, k and v as reference_attention() expects them. Repeats keys and values that several query heads use.
inline Doubles reference_concatenate_qkv(const ModelShape& s, const Doubles& q, const Doubles& k, const Doubles& v) {
  const size_t rows = q.size() / static_cast<size_t>(s.width);
  Doubles qkv;
  for (size_t row = 0; row < rows; ++row) {
    for (const Doubles* part : {&q, &k, &v}) {
      const int64_t shared = part == &q ? 1 : s.heads / s.kv_heads;
      const size_t stride = part->size() / rows;
      for (int64_t i = 0; i < s.width; ++i) {
        const int64_t head = i / s.head_width() / shared;
        qkv.push_back((*part)[row * stride + static_cast<size_t>(head * s.head_width() + i % s.head_width())]);
      }
    }
  }
  return qkv;
}

/// Returns the loss of the full model. Parameters have their Hugging Face names.
inline double reference_llama_loss(const ModelShape& shape, const std::map<std::string, Doubles>& parameters,
                                   int64_t batch, const std::vector<int32_t>& tokens,
                                   const std::vector<int32_t>& targets) {
  const auto width = static_cast<size_t>(shape.width);
  const int64_t sequence = static_cast<int64_t>(tokens.size()) / batch;
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
    Doubles q = reference_linear_without_bias(normal, p("self_attn.q_proj"), shape.width);
    Doubles k = reference_linear_without_bias(normal, p("self_attn.k_proj"), shape.width);
    const Doubles v = reference_linear_without_bias(normal, p("self_attn.v_proj"), shape.width);
    reference_rotate(q, shape, shape.heads, sequence);
    reference_rotate(k, shape, shape.kv_heads, sequence);
    const Doubles mixed = reference_attention(reference_concatenate_qkv(shape, q, k, v), batch, sequence, shape.heads,
                                              shape.head_width());
    add(reference_linear_without_bias(mixed, p("self_attn.o_proj"), shape.width));
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
