#pragma once
// ALIQUOT_HOST_DEVICE marks a function that host code and CUDA kernels share, so that both do the same arithmetic. On
// hosts the function is always inlined. Otherwise the linker could use the copy from a file with AVX flags in the
// entire binary. The binary would then fail on a processor without AVX. ALIQUOT_UNROLL unrolls a loop in GPU code, so
// that the arrays that the loop indexes stay in registers.

#ifdef __CUDACC__
#define ALIQUOT_HOST_DEVICE __host__ __device__ inline
#else
#define ALIQUOT_HOST_DEVICE [[gnu::always_inline]] inline
#endif

// Like ALIQUOT_HOST_DEVICE, for functions that only hosts run.
#define ALIQUOT_HOST_INLINE [[gnu::always_inline]] inline

#ifdef __CUDA_ARCH__
#define ALIQUOT_UNROLL _Pragma("unroll")
#else
#define ALIQUOT_UNROLL
#endif
