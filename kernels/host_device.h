#pragma once
// Marks a function that host code and CUDA kernels share, so that both run the same arithmetic. Plain `inline` without nvcc.

#ifdef __CUDACC__
#define ALIQUOT_HOST_DEVICE __host__ __device__ inline
#else
#define ALIQUOT_HOST_DEVICE inline
#endif
