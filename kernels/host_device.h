#pragma once
// Marks a function that host code and CUDA kernels share, so that both run the same arithmetic.
// On the host it is always inlined, never emitted by itself: a copy compiled in a file with AVX flags could otherwise
// be the one the linker keeps for everybody, and the binary would die on a processor without AVX.

#ifdef __CUDACC__
#define ALIQUOT_HOST_DEVICE __host__ __device__ inline
#else
#define ALIQUOT_HOST_DEVICE [[gnu::always_inline]] inline
#endif
