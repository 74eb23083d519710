// The CUDA kernels of embeddings whose table ranks divide.
#include "kernels/device/row_loops_cuda.h"
#include "kernels/elementwise/elements_cuda.h"
#include "kernels/layers/split_layers.h"

namespace aliquot {
namespace cuda {
namespace {

template <class Table>
__global__ void look_up_rows(float* to, const typename Table::Storage* table, const EmbeddingRows a,
                             unsigned blocks_per_row) {
  const RowPlace place = row_place(blocks_per_row);
  if (place.row >= a.rows) return;
  const int64_t entry = a.tokens[place.row] - a.first_entry;
  const bool has = 0 <= entry && entry < a.entries;
  to += place.row * a.width;
  const auto* from = table + (has ? entry : 0) * a.width;
  for_row<kPackElements>(a.width, elements_before_row_packs<kPackElements>(to, from), place,
                         [&]<int kCount>(int column) {
                           Pack<float, kCount> values{};
                           if (has) values = load_floats<Table, kCount>(from + column);
                           for (float& value : values.lane) value += 0.0f;  // -0 becomes 0, as in a sum over ranks
                           store_floats<Fp32Element, kCount>(to + column, values);
                         });
}

/// The threads of a token's first row add all rows of that token, so that the order of addition is fixed.
template <class Table>
__global__ void add_rows_of_tokens(typename Table::Storage* table, const float* from, const EmbeddingRows a,
                                   const TokenSortedRows sorted, unsigned blocks_per_row) {
  const RowPlace place = row_place(blocks_per_row);
  const int64_t first = place.row;
  if (first >= a.rows) return;
  const int32_t token = sorted.tokens[first];
  const int64_t entry = token - a.first_entry;
  if (first > 0 && sorted.tokens[first - 1] == token) return;
  if (entry < 0 || entry >= a.entries) return;
  typename Table::Storage* to = table + entry * a.width;
  for_row<kPackElements>(
      a.width, elements_before_row_packs<kPackElements>(to, from, from + a.width), place, [&]<int kCount>(int column) {
        auto sums = load_floats<Table, kCount>(to + column);
        for (int64_t p = first; p < a.rows && sorted.tokens[p] == token; ++p) {
          const auto more = load_floats<Fp32Element, kCount>(from + sorted.rows[p] * a.width + column);
          for (int k = 0; k < kCount; ++k) sums.lane[k] += more.lane[k];
        }
        store_floats<Table, kCount>(to + column, sums);
      });
}

}  // namespace
}  // namespace cuda

void split_embedding_forward(Stream& stream, const EmbeddingRows& embedding, ConstValues table, float* to) {
  const cuda::RowGrid grid = cuda::row_grid(embedding.rows, embedding.width, kPackElements);
  cuda::as_element(table.type, [&]<class Table>(Table of) {
    start_kernel(stream, "embedding", grid.grid, cuda::look_up_rows<Table>, to, cuda::data_as(table, of), embedding,
                 grid.blocks_per_row);
  });
}

void split_embedding_backward(Stream& stream, const EmbeddingRows& embedding, const TokenSortedRows& sorted,
                              const float* from, Values table_gradient) {
  const cuda::RowGrid grid = cuda::row_grid(embedding.rows, embedding.width, kPackElements);
  cuda::as_element(table_gradient.type, [&]<class Table>(Table of) {
    start_kernel(stream, "embedding backward", grid.grid, cuda::add_rows_of_tokens<Table>,
                 cuda::data_as(table_gradient, of), from, embedding, sorted, grid.blocks_per_row);
  });
}

}  // namespace aliquot
