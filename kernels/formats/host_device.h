#pragma once
// Marks a function that host code and CUDA kernels share, so that both run the same arithmetic.
// On the host it is always inlined, never emitted by itself: a copy compiled in a file with AVX flags could otherwise be
// the one the linker keeps for everybody, and the binary would die on a processor without AVX.
// ALIQUOT_UNROLL before a loop keeps the arrays it indexes in a GPU thread's registers.

#ifdef __CUDACC__
#define ALIQUOT_HOST_DEVICE __host__ __device__ inline
#else
#define ALIQUOT_HOST_DEVICE [[gnu::always_inline]] inline
#endif

// The same for functions that only hosts run.
#define ALIQUOT_HOST_INLINE [[gnu::always_inline]] inline

#ifdef __CUDA_ARCH__
#define ALIQUOT_UNROLL _Pragma("unroll")
#else
#define ALIQUOT_UNROLL
#endif
