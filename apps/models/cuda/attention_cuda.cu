// Selects the attention kernels for a shape.
#include <algorithm>
#include <string>

#include "apps/models/cuda/attention_backward_keys_cuda.h"
#include "apps/models/cuda/attention_backward_queries_cuda.h"
#include "apps/models/cuda/attention_cached_cuda.h"
#include "apps/models/cuda/attention_deltas_cuda.h"
#include "apps/models/cuda/attention_forward_cuda.h"
#include "apps/models/cuda/attention_rows_cuda.h"
#include "kernels/device/device_cuda.h"
#include "kernels/system/error.h"

namespace aliquot::cuda {
namespace {

/// The widest head for which tiles fit in shared memory and sums fit in registers.
constexpr int64_t kWidestTile = 128;

void require_supported_head_width(const AttentionShape& s) {
  if (s.head_width <= kWidestHead) return;
  throw UnavailableError("attention on a GPU does not support a head width of " + std::to_string(s.head_width) +
                         ", only up to " + std::to_string(kWidestHead) + ": use more --heads, or --device host.");
}

/// Calls body with the 16-bit element type and the smallest compiled width that is at least `head_width`, as an
/// integral_constant.
template <class Body>
void as_tiles(DType type, int64_t head_width, Body&& body) {
  const auto by_width = [&]<class E>(E element) {
    if (head_width <= 32) return body(element, std::integral_constant<int, 32>{});
    if (head_width <= 64) return body(element, std::integral_constant<int, 64>{});
    if (head_width <= 96) return body(element, std::integral_constant<int, 96>{});
    body(element, std::integral_constant<int, 128>{});
  };
  if (type == DType::kFloat16) return by_width(Fp16Element{});
  by_width(Bf16Element{});
}

/// The largest shared memory of a thread block of the kernels for a width, forward and backward.
template <int kWidth>
constexpr unsigned most_shared_bytes() {
  return std::max({ForwardTiles<kWidth>::kSharedBytes, BackwardQueriesTiles<kWidth>::kSharedBytes,
                   BackwardKeysTiles<kWidth>::kSharedBytes});
}

/// Whether forward and backward use tensor cores. Some GPUs, such as those of compute capability 8.6, have too little
/// shared memory for wide heads.
bool uses_tiles(Stream& stream, const AttentionShape& s, DType type) {
  if (type == DType::kFloat32 || s.head_width > kWidestTile) return false;
  bool fits = false;
  as_tiles(type, s.head_width, [&](auto, auto width) {
    fits = most_shared_bytes<width.value>() <= cuda_device(stream).block_shared_bytes();
  });
  return fits;
}

/// Whether all rows of heads begin and end at multiples of 16 bytes.
template <class... Pointer>
bool aligned_to_packs(const AttentionShape& s, const Pointer*... at) {
  return s.head_width % 8 == 0 && ((reinterpret_cast<uintptr_t>(at) % 16 == 0) && ...);
}

template <int kRows>
Grid tile_grid(const AttentionShape& s, int64_t heads, unsigned shared_bytes) {
  return {static_cast<unsigned>(s.batch * heads * tile_count<kRows>(s)), kTileThreads, shared_bytes};
}

/// One warp for each query of each head.
Grid row_grid(const AttentionShape& s) { return launch_grid(s.batch * s.heads * s.sequence * kLanesPerWarp); }

template <class E, int kWidth>
void backward_of_tiles(Stream& stream, const AttentionBackward& a) {
  using Queries = BackwardQueriesTiles<kWidth>;
  using Keys = BackwardKeysTiles<kWidth>;
  const AttentionShape& s = a.shape;
  const bool aligned = aligned_to_packs(s, a.qkv.data, a.from, a.to.data);
  start_kernel(stream, "attention deltas", launch_grid(s.batch * s.sequence * kLanesPerWarp),
               sum_deltas_and_round<E, kWidth>, a);
  start_kernel(stream, "attention queries", tile_grid<Queries::kQueries>(s, s.heads, Queries::kSharedBytes),
               attend_tiles_backward_queries<E, kWidth>, a, aligned);
  start_kernel(stream, "attention keys", tile_grid<Keys::kKeys>(s, s.kv_heads, Keys::kSharedBytes),
               attend_tiles_backward_keys<E, kWidth>, a, aligned);
}

}  // namespace

void attention_forward(Stream& stream, const AttentionForward& a) {
  const AttentionShape& s = a.shape;
  require_supported_head_width(s);
  if (a.cached.rows.data != nullptr) {
    return as_element(a.qkv.type, [&]<class E>(E) {
      start_kernel(stream, "attention", launch_grid(s.heads * s.sequence * kLanesPerWarp), attend_cached_rows<E>, a);
    });
  }
  if (!uses_tiles(stream, s, a.qkv.type)) {
    return as_element(a.qkv.type,
                      [&]<class E>(E) { start_kernel(stream, "attention", row_grid(s), attend_rows<E>, a); });
  }
  as_tiles(a.qkv.type, s.head_width, [&]<class E>(E, auto width) {
    using Tiles = ForwardTiles<width.value>;
    start_kernel(stream, "attention", tile_grid<Tiles::kQueries>(s, s.heads, Tiles::kSharedBytes),
                 attend_tiles<E, width.value>, a, aligned_to_packs(s, a.qkv.data, a.to.data));
  });
}

void attention_backward(Stream& stream, const AttentionBackward& a) {
  const AttentionShape& s = a.shape;
  require_supported_head_width(s);
  if (uses_tiles(stream, s, a.qkv.type)) {
    return as_tiles(a.qkv.type, s.head_width,
                    [&]<class E>(E, auto width) { backward_of_tiles<E, width.value>(stream, a); });
  }
  as_element(a.qkv.type, [&]<class E>(E) {
    start_kernel(stream, "attention deltas", row_grid(s), sum_deltas<E>, a);
    start_kernel(stream, "attention queries", row_grid(s), attend_rows_backward_queries<E>, a);
    start_kernel(stream, "attention keys", launch_grid(s.batch * s.kv_heads * s.sequence * kLanesPerWarp),
                 attend_rows_backward_keys<E>, a);
  });
}

}  // namespace aliquot::cuda
