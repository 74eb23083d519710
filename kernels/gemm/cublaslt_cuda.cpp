#include "kernels/gemm/cublaslt_cuda.h"

#include <dlfcn.h>
#include <string>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

const std::string kFile = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);

void* opened() {
  // Tries the search path of the dynamic loader first, then the folder of cuBLASLt that CMake found.
  for (const std::string& file : {kFile, std::string(ALIQUOT_CUBLASLT_FOLDER) + "/" + kFile}) {
    if (void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  throw UnavailableError("matrix products on a GPU need " + kFile +
                         ", which was not found: install this version of cuBLAS, add its folder to LD_LIBRARY_PATH, or "
                         "use --device host.");
}

template <class Function>
void find(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr)
    throw UnavailableError(kFile + " has no function " + name + ": install a newer version of cuBLAS.");
}

CublasLt load() {
  void* library = opened();
  CublasLt all{};
  find(library, all.create, "cublasLtCreate");
  find(library, all.destroy, "cublasLtDestroy");
  find(library, all.version, "cublasLtGetVersion");
  find(library, all.status_name, "cublasLtGetStatusName");
  find(library, all.create_product, "cublasLtMatmulDescCreate");
  find(library, all.destroy_product, "cublasLtMatmulDescDestroy");
  find(library, all.set_product, "cublasLtMatmulDescSetAttribute");
  find(library, all.create_layout, "cublasLtMatrixLayoutCreate");
  find(library, all.destroy_layout, "cublasLtMatrixLayoutDestroy");
  find(library, all.create_preference, "cublasLtMatmulPreferenceCreate");
  find(library, all.destroy_preference, "cublasLtMatmulPreferenceDestroy");
  find(library, all.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  find(library, all.find_algorithm, "cublasLtMatmulAlgoGetHeuristic");
  find(library, all.get_capability, "cublasLtMatmulAlgoCapGetAttribute");
  find(library, all.multiply, "cublasLtMatmul");
  return all;
}

}  // namespace

const CublasLt& cublaslt() {
  static const CublasLt functions = load();
  return functions;
}

}  // namespace aliquot
