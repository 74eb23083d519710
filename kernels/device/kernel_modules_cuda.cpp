#include "kernels/device/kernel_modules_cuda.h"

#include <cuda.h>
#include <mutex>
#include <string_view>
#include <vector>

#include "kernels/device/enqueue_cuda.h"

namespace aliquot {
namespace {

/// A kernel of each module. Modules register themselves while libraries are loaded, also by dlopen().
struct Registry {
  std::mutex mutex;
  std::vector<const void*> kernels;
};

Registry& registry() {
  static Registry all;
  return all;
}

std::vector<const void*> registered_kernels() {
  const std::lock_guard lock(registry().mutex);
  return registry().kernels;
}

#if CUDART_VERSION >= 12050

/// Sets `function` to a function of the CUDA driver. Returns whether the driver has this function. The driver is not
/// linked, because machines without a GPU do not have it.
template <class Function>
bool find_in_driver(const char* name, Function*& function) {
  constexpr unsigned kVersion = 12040;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
  if (cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &status) != cudaSuccess ||
      status != cudaDriverEntryPointSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  function = reinterpret_cast<Function*>(found);
  return true;
}

struct DriverFunctions {
  decltype(cuFuncGetModule)* get_module = nullptr;
  decltype(cuModuleGetFunctionCount)* get_count = nullptr;
  decltype(cuModuleEnumerateFunctions)* enumerate = nullptr;
  decltype(cuFuncLoad)* load = nullptr;

  bool find() {
    return find_in_driver("cuFuncGetModule", get_module) && find_in_driver("cuModuleGetFunctionCount", get_count) &&
           find_in_driver("cuModuleEnumerateFunctions", enumerate) && find_in_driver("cuFuncLoad", load);
  }
};

/// Errors of the driver and of the runtime have the same numbers.
void check_driver(CUresult result, std::string_view action) { check(static_cast<cudaError_t>(result), action); }

void load_module_of(const void* kernel, const DriverFunctions& driver) {
  cudaFunction_t function = nullptr;
  const cudaError_t result = cudaGetFuncBySymbol(&function, kernel);
  if (result == cudaErrorNoKernelImageForDevice) {
    (void)cudaGetLastError();
    return;  // a launch would report this error; a program may have modules that it never uses
  }
  check(result, "loading kernels");
  CUmodule module = nullptr;
  check_driver(driver.get_module(&module, function), "loading kernels with cuFuncGetModule()");
  unsigned count = 0;
  check_driver(driver.get_count(&count, module), "loading kernels with cuModuleGetFunctionCount()");
  std::vector<CUfunction> functions(count);
  check_driver(driver.enumerate(functions.data(), count, module), "loading kernels with cuModuleEnumerateFunctions()");
  for (const CUfunction each : functions) check_driver(driver.load(each), "loading kernels with cuFuncLoad()");
}

#endif

}  // namespace

bool register_kernel_module(const void* kernel) {
  const std::lock_guard lock(registry().mutex);
  registry().kernels.push_back(kernel);
  return true;
}

void load_kernel_modules() {
#if CUDART_VERSION >= 12050
  DriverFunctions driver;
  if (!driver.find()) return;
  for (const void* kernel : registered_kernels()) load_module_of(kernel, driver);
#endif
}

}  // namespace aliquot
