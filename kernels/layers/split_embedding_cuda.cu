// The CUDA kernels of embeddings whose table ranks divide.
#include "kernels/elementwise/elements_cuda.h"
#include "kernels/layers/split_layers.h"

namespace aliquot {
namespace cuda {
namespace {

template <class Table>
__global__ void look_up_rows(float* to, const typename Table::Storage* table, const EmbeddingRows a) {
  for (int64_t i = launch_thread(); i < a.rows * a.width; i += launch_stride()) {
    const int64_t entry = a.tokens[i / a.width] - a.first_entry;
    const bool has = 0 <= entry && entry < a.entries;
    // -0 becomes 0, as in a sum over ranks.
    to[i] = (has ? Table::load(table[entry * a.width + i % a.width]) : 0.0f) + 0.0f;
  }
}

/// The thread of a token's first row adds all rows of that token, so that the order of addition is fixed.
template <class Table>
__global__ void add_rows_of_tokens(typename Table::Storage* table, const float* from, const EmbeddingRows a,
                                   const TokenSortedRows sorted) {
  for (int64_t i = launch_thread(); i < a.rows * a.width; i += launch_stride()) {
    const int64_t place = i / a.width, column = i % a.width;
    const int32_t token = sorted.tokens[place];
    if (place > 0 && sorted.tokens[place - 1] == token) continue;
    const int64_t entry = token - a.first_entry;
    if (entry < 0 || entry >= a.entries) continue;
    typename Table::Storage* to = table + entry * a.width + column;
    float sum = Table::load(*to);
    for (int64_t p = place; p < a.rows && sorted.tokens[p] == token; ++p) {
      sum += from[sorted.rows[p] * a.width + column];
    }
    *to = Table::store(sum);
  }
}

}  // namespace
}  // namespace cuda

void split_embedding_forward(Stream& stream, const EmbeddingRows& embedding, ConstValues table, float* to) {
  cuda::as_element(table.type, [&]<class Table>(Table of) {
    start_kernel(stream, "embedding", launch_grid(embedding.rows * embedding.width), cuda::look_up_rows<Table>, to,
                 cuda::data_as(table, of), embedding);
  });
}

void split_embedding_backward(Stream& stream, const EmbeddingRows& embedding, const TokenSortedRows& sorted,
                              const float* from, Values table_gradient) {
  cuda::as_element(table_gradient.type, [&]<class Table>(Table of) {
    start_kernel(stream, "embedding backward", launch_grid(embedding.rows * embedding.width),
                 cuda::add_rows_of_tokens<Table>, cuda::data_as(table_gradient, of), from, embedding, sorted);
  });
}

}  // namespace aliquot
