// The CUDA kernels of elementwise layers, rotary positions, biases and learned positions.
#include <cmath>

#include "apps/models/cuda/layers_cuda.h"
#include "kernels/device/device_cuda.h"
#include "kernels/elementwise/elements_cuda.h"

namespace aliquot::cuda {
namespace {

constexpr float kGeluScale = 0.79788456f;  // sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715f;

// (1 + tanh u) / 2 = 1 / (1 + e^-2u). The right side has no cancellation.
__device__ float gelu_gate(float x) {
  const float u = kGeluScale * (x + kGeluCubic * x * x * x);
  return 1.0f / (1.0f + expf(-2.0f * u));
}

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <class E>
struct Gelu {
  typename E::Storage* to;
  const typename E::Storage* x;
  template <int kCount>
  __device__ void at(int64_t i) const {
    auto values = load_floats<E, kCount>(x + i);
    for (float& v : values.lane) v = v * gelu_gate(v);
    store_floats<E, kCount>(to + i, values);
  }
};

template <class E>
struct GeluBackward {
  typename E::Storage* gradient;
  const typename E::Storage* x;
  template <int kCount>
  __device__ void at(int64_t i) const {
    auto g = load_floats<E, kCount>(gradient + i);
    const auto values = load_floats<E, kCount>(x + i);
    for (int k = 0; k < kCount; ++k) {
      const float v = values.lane[k], gate = gelu_gate(v);
      const float slope = 2.0f * kGeluScale * (1.0f + 3.0f * kGeluCubic * v * v);
      g.lane[k] *= gate + v * gate * (1.0f - gate) * slope;
    }
    store_floats<E, kCount>(gradient + i, g);
  }
};

template <class E>
struct Gated {
  typename E::Storage* to;
  const typename E::Storage *gate, *up;
  template <int kCount>
  __device__ void at(int64_t i) const {
    auto x = load_floats<E, kCount>(gate + i);
    const auto other = load_floats<E, kCount>(up + i);
    for (int k = 0; k < kCount; ++k) x.lane[k] = x.lane[k] * sigmoid(x.lane[k]) * other.lane[k];
    store_floats<E, kCount>(to + i, x);
  }
};

template <class E>
struct GatedBackward {
  const typename E::Storage* from;
  typename E::Storage *gate, *up;
  template <int kCount>
  __device__ void at(int64_t i) const {
    const auto g = load_floats<E, kCount>(from + i);
    auto of_gate = load_floats<E, kCount>(gate + i), of_up = load_floats<E, kCount>(up + i);
    for (int k = 0; k < kCount; ++k) {
      const float x = of_gate.lane[k], s = sigmoid(x);
      of_gate.lane[k] = g.lane[k] * of_up.lane[k] * (s * (1.0f + x * (1.0f - s)));
      of_up.lane[k] = g.lane[k] * x * s;
    }
    store_floats<E, kCount>(gate + i, of_gate);
    store_floats<E, kCount>(up + i, of_up);
  }
};

/// One thread for each pair of elements.
template <class E>
__global__ void rotate_pairs(typename E::Storage* x, const Rotary a) {
  const int64_t half = a.head_width / 2, of_row = a.heads * half;
  for (int64_t p = launch_thread(); p < a.batch * a.sequence * of_row; p += launch_stride()) {
    const int64_t row = p / of_row, head = p % of_row / half, pair = p % half;
    const int64_t angle = row % a.sequence * half + pair;
    const float c = a.cosines[angle], s = a.back ? -a.sines[angle] : a.sines[angle];
    typename E::Storage *low = x + row * a.stride + head * a.head_width + pair, *high = low + half;
    const float first = E::load(*low), second = E::load(*high);
    *low = E::store(first * c - second * s);
    *high = E::store(second * c + first * s);
  }
}

template <class To, class Bias>
__global__ void add_bias_to_rows(const BiasRows a) {
  auto* to = static_cast<typename To::Storage*>(a.to.data);
  const auto* bias = static_cast<const typename Bias::Storage*>(a.bias.data);
  const int64_t stride = a.stride == 0 ? a.width : a.stride;
  for (int64_t i = launch_thread(); i < a.rows * a.width; i += launch_stride()) {
    const int64_t row = i / a.width, column = i % a.width;
    const float base = a.from == nullptr ? 0.0f : a.from[i];
    to[row * stride + column] = To::store(bias == nullptr ? base : base + Bias::load(bias[column]));
  }
}

template <class Table>
__global__ void add_positions(float* to, const float* from, const typename Table::Storage* table, const Positions a) {
  const int64_t of_sequence = a.sequence * a.width, first = a.first_row % a.sequence * a.width;
  for (int64_t i = launch_thread(); i < a.rows * a.width; i += launch_stride()) {
    to[i] = from[i] + Table::load(table[(first + i) % of_sequence]);
  }
}

template <class Table>
__global__ void sum_positions(typename Table::Storage* table, const float* from, const Positions a, bool add) {
  const int64_t of_sequence = a.sequence * a.width;
  const int64_t count = add ? of_sequence : a.context * a.width;
  for (int64_t i = launch_thread(); i < count; i += launch_stride()) {
    const int64_t position = i / a.width;
    float sum = add ? Table::load(table[i]) : 0.0f;
    if (position < a.sequence) {
      for (int64_t row = a.row_of(position); row < a.rows; row += a.sequence) sum += from[row * a.width + i % a.width];
    }
    table[i] = Table::store(sum);
  }
}

}  // namespace

void gelu_forward(Stream& stream, Values to, ConstValues x, int64_t count) {
  as_element(to.type, [&]<class E>(E e) {
    launch_elements(stream, "gelu", count, Gelu<E>{data_as(to, e), data_as(x, e)}, data_as(to, e), data_as(x, e));
  });
}

void gelu_backward(Stream& stream, Values gradient, ConstValues x, int64_t count) {
  as_element(gradient.type, [&]<class E>(E e) {
    launch_elements(stream, "gelu backward", count, GeluBackward<E>{data_as(gradient, e), data_as(x, e)},
                    data_as(gradient, e), data_as(x, e));
  });
}

void gated_forward(Stream& stream, Values to, const GatedElements& a) {
  as_element(to.type, [&]<class E>(E e) {
    launch_elements(stream, "gated", a.count, Gated<E>{data_as(to, e), data_as(a.gate, e), data_as(a.up, e)},
                    data_as(to, e), data_as(a.gate, e), data_as(a.up, e));
  });
}

void gated_backward(Stream& stream, ConstValues from, const GatedElements& a) {
  as_element(from.type, [&]<class E>(E e) {
    launch_elements(stream, "gated backward", a.count,
                    GatedBackward<E>{data_as(from, e), data_as(a.gate, e), data_as(a.up, e)}, data_as(from, e),
                    data_as(a.gate, e), data_as(a.up, e));
  });
}

void rotate(Stream& stream, const Rotary& a, Values x) {
  const int64_t pairs = a.batch * a.sequence * a.heads * (a.head_width / 2);
  as_element(x.type, [&]<class E>(E e) {
    start_kernel(stream, "rotate", launch_grid(pairs), rotate_pairs<E>, data_as(x, e), a);
  });
}

void add_bias(Stream& stream, const BiasRows& a) {
  as_element(a.to.type, [&]<class To>(To) {
    as_element(a.bias.type, [&]<class Bias>(Bias) {
      start_kernel(stream, "bias", launch_grid(a.rows * a.width), add_bias_to_rows<To, Bias>, a);
    });
  });
}

void positions_forward(Stream& stream, const Positions& a, ConstValues table, const float* from, float* to) {
  as_element(table.type, [&]<class Table>(Table of) {
    start_kernel(stream, "positions", launch_grid(a.rows * a.width), add_positions<Table>, to, from, data_as(table, of),
                 a);
  });
}

void positions_backward(Stream& stream, const Positions& a, const float* from, Values table_gradient, bool add) {
  as_element(table_gradient.type, [&]<class Table>(Table of) {
    start_kernel(stream, "positions backward", launch_grid((add ? a.sequence : a.context) * a.width),
                 sum_positions<Table>, data_as(table_gradient, of), from, a, add);
  });
}

}  // namespace aliquot::cuda
