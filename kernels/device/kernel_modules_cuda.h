#pragma once
// Loading of kernels before they are launched.

namespace aliquot {

/// Loads all kernels of the library and of the program on the current GPU: those of each *.cu file that includes
/// kernels/device/start_kernel_cuda.h, if it was loaded before this call. By default CUDA loads a kernel at its first
/// launch, and may wait for all work of the GPU first. That work may include a collective that waits for other ranks.
/// Kernels of other libraries, such as cuBLASLt, are still loaded at their first launch. Skips files without code for
/// this GPU. Does nothing if the driver or the toolkit has no functions for this (before CUDA 12.5). Throws like
/// check().
void load_kernel_modules();

}  // namespace aliquot
