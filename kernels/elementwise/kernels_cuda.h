#pragma once
// Internal: the functions of `Kernels` on CUDA devices. kernels/elementwise/kernels.h describes them, and *_cuda.cu
// files define them.

#include <cstdint>

#include "kernels/elementwise/kernels.h"

namespace aliquot::cuda {

/// The maximum number of sources of sum_tree(): their addresses are parameters of the kernel.
inline constexpr int kMaxTreeSources = 256;

void copy(Stream& stream, void* to, const void* from, int64_t size_bytes);
void fill(Stream& stream, void* to, DType dtype, float value, int64_t count);
void scale(Stream& stream, float* x, float factor, int64_t count);
void add(Stream& stream, float* to, const float* from, int64_t count);
void axpy(Stream& stream, float* y, float a, const float* x, int64_t count);
void cast(Stream& stream, void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count);
void split(Stream& stream, uint16_t* high, int16_t* low, const float* master, int64_t count);
void merge(Stream& stream, float* master, const uint16_t* high, const int16_t* low, int64_t count);
/// Throws std::logic_error for more than kMaxTreeSources sources.
void sum_tree(Stream& stream, const TreeSum& sum);
void block_squares(Stream& stream, double* sums, const float* x, int64_t count);
void block_largest(Stream& stream, double* values, const void* x, DType dtype, int64_t count);
void block_fixed_squares(Stream& stream, double* sums, const FixedSquares& args);
void sum_runs(Stream& stream, const RunSums& what);
void find_nonfinite(Stream& stream, int64_t* first, const void* x, DType dtype, int64_t count);
void encode(Stream& stream, const Encode& args);
void decode(Stream& stream, const Decode& args);
void block_digests(Stream& stream, const BlockDigests& what);
void digest_sum(Stream& stream, uint64_t* sum, const void* data, int64_t size_bytes);

}  // namespace aliquot::cuda
