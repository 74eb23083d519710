// The CUDA kernels of elementwise layers, rotary positions, biases and learned positions.
#include <cmath>

#include "apps/models/cuda/layers_cuda.h"
#include "kernels/device/device_cuda.h"
#include "kernels/device/row_loops_cuda.h"
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
  static constexpr int kElements = kLoadElements<typename E::Storage>;
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
  static constexpr int kElements = kLoadElements<typename E::Storage>;
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
  static constexpr int kElements = kLoadElements<typename E::Storage>;
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
  static constexpr int kElements = kLoadElements<typename E::Storage>;
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

/// Each thread rotates pairs of elements of one row.
template <class E>
__global__ void rotate_pairs(typename E::Storage* x, const Rotary a, unsigned blocks_per_row) {
  const RowPlace place = row_place(blocks_per_row);
  if (place.row >= a.batch * a.sequence) return;
  const auto half = static_cast<int>(a.head_width / 2);
  const int64_t angles = place.row % a.sequence * half;
  for_row<1>(a.heads * half, 0, place, [&]<int>(int p) {
    const int head = p / half, pair = p % half;
    const float c = a.cosines[angles + pair], s = a.back ? -a.sines[angles + pair] : a.sines[angles + pair];
    typename E::Storage *low = x + place.row * a.stride + head * a.head_width + pair, *high = low + half;
    const float first = E::load(*low), second = E::load(*high);
    *low = E::store(first * c - second * s);
    *high = E::store(second * c + first * s);
  });
}

template <class To, class Bias>
__global__ void add_bias_to_rows(const BiasRows a, unsigned blocks_per_row) {
  const RowPlace place = row_place(blocks_per_row);
  if (place.row >= a.rows) return;
  auto* to = static_cast<typename To::Storage*>(a.to.data) + place.row * (a.stride == 0 ? a.width : a.stride);
  const auto* bias = static_cast<const typename Bias::Storage*>(a.bias.data);
  const float* from = a.from == nullptr ? nullptr : a.from + place.row * a.width;
  for_row<kPackElements>(a.width, elements_before_row_packs<kPackElements>(to, bias, from), place,
                         [&]<int kCount>(int column) {
                           Pack<float, kCount> values{};
                           if (from != nullptr) values = load_floats<Fp32Element, kCount>(from + column);
                           if (bias != nullptr) {
                             const auto more = load_floats<Bias, kCount>(bias + column);
                             for (int k = 0; k < kCount; ++k) values.lane[k] += more.lane[k];
                           }
                           store_floats<To, kCount>(to + column, values);
                         });
}

template <class Table>
__global__ void add_positions(float* to, const float* from, const typename Table::Storage* table, const Positions a,
                              unsigned blocks_per_row) {
  const RowPlace place = row_place(blocks_per_row);
  if (place.row >= a.rows) return;
  to += place.row * a.width;
  from += place.row * a.width;
  table += (a.first_row + place.row) % a.sequence * a.width;
  for_row<kPackElements>(a.width, elements_before_row_packs<kPackElements>(to, from, table), place,
                         [&]<int kCount>(int column) {
                           auto values = load_floats<Fp32Element, kCount>(from + column);
                           const auto more = load_floats<Table, kCount>(table + column);
                           for (int k = 0; k < kCount; ++k) values.lane[k] += more.lane[k];
                           store_floats<Fp32Element, kCount>(to + column, values);
                         });
}

/// The threads of a position add its rows from the first to the last.
template <class Table>
__global__ void sum_positions(typename Table::Storage* table, const float* from, const Positions a, bool add,
                              unsigned blocks_per_row) {
  const RowPlace place = row_place(blocks_per_row);
  const int64_t position = place.row;
  if (position >= (add ? a.sequence : a.context)) return;
  table += position * a.width;
  for_row<kPackElements>(a.width, elements_before_row_packs<kPackElements>(table, from, from + a.width), place,
                         [&]<int kCount>(int column) {
                           Pack<float, kCount> sums{};
                           if (add) sums = load_floats<Table, kCount>(table + column);
                           for (int64_t row = a.row_of(position); position < a.sequence && row < a.rows;
                                row += a.sequence) {
                             const auto more = load_floats<Fp32Element, kCount>(from + row * a.width + column);
                             for (int k = 0; k < kCount; ++k) sums.lane[k] += more.lane[k];
                           }
                           store_floats<Table, kCount>(table + column, sums);
                         });
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
  const RowGrid grid = row_grid(a.batch * a.sequence, a.heads * (a.head_width / 2), 1);
  as_element(x.type, [&]<class E>(E e) {
    start_kernel(stream, "rotate", grid.grid, rotate_pairs<E>, data_as(x, e), a, grid.blocks_per_row);
  });
}

void add_bias(Stream& stream, const BiasRows& a) {
  const RowGrid grid = row_grid(a.rows, a.width, kPackElements);
  as_element(a.to.type, [&]<class To>(To) {
    as_element(a.bias.type, [&]<class Bias>(Bias) {
      start_kernel(stream, "bias", grid.grid, add_bias_to_rows<To, Bias>, a, grid.blocks_per_row);
    });
  });
}

void positions_forward(Stream& stream, const Positions& a, ConstValues table, const float* from, float* to) {
  const RowGrid grid = row_grid(a.rows, a.width, kPackElements);
  as_element(table.type, [&]<class Table>(Table of) {
    start_kernel(stream, "positions", grid.grid, add_positions<Table>, to, from, data_as(table, of), a,
                 grid.blocks_per_row);
  });
}

void positions_backward(Stream& stream, const Positions& a, const float* from, Values table_gradient, bool add) {
  const RowGrid grid = row_grid(add ? a.sequence : a.context, a.width, kPackElements);
  as_element(table_gradient.type, [&]<class Table>(Table of) {
    start_kernel(stream, "positions backward", grid.grid, sum_positions<Table>, data_as(table_gradient, of), from, a,
                 add, grid.blocks_per_row);
  });
}

}  // namespace aliquot::cuda
