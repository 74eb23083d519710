#pragma once
// cuBLASLt, opened when the first product wants it: it takes a third of a second to load, and most calls of the command multiply
// nothing on a GPU.

#include <cublasLt.h>

namespace aliquot {

/// The functions that products use, by their names without the prefix.
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

/// Of the process, never closed. From any thread. Throws UnavailableError, naming the file, where it cannot be opened.
const CublasLt& cublaslt();

}  // namespace aliquot
