#pragma once
// cuBLASLt, loaded at the first use. Loading takes a third of a second, and most commands compute no products on a GPU.

#include <cublasLt.h>

namespace aliquot {

/// Pointers to the functions of cuBLASLt that CudaProducts calls.
struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetStatusName) status_name;
  decltype(&cublasLtMatmulDescCreate) create_product;
  decltype(&cublasLtMatmulDescDestroy) destroy_product;
  decltype(&cublasLtMatmulDescSetAttribute) set_product;
  decltype(&cublasLtMatrixLayoutCreate) create_layout;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) find_algorithm;
  decltype(&cublasLtMatmul) multiply;
};

/// The library, loaded by the first call and never unloaded. May be called from any thread. Throws UnavailableError,
/// naming the file, if it cannot be loaded.
const CublasLt& cublaslt();

}  // namespace aliquot
