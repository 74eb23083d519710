#pragma once
// Loads cuBLASLt when it is first needed. Loading takes about a third of a second, and most commands compute no matrix
// products on a GPU.

#include <cublasLt.h>

namespace aliquot {

/// Pointers to the functions of cuBLASLt that CudaProducts calls.
struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetVersion) version;
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
  decltype(&cublasLtMatmulAlgoCapGetAttribute) get_capability;
  decltype(&cublasLtMatmul) multiply;
};

/// Returns the functions of the library. The first call loads the library, which is never unloaded. Thread-safe. Throws
/// UnavailableError, naming the file, if the library cannot be loaded.
const CublasLt& cublaslt();

}  // namespace aliquot
