#include "apps/models/layers/small_product.h"

#include <dlfcn.h>
#include <dnnl.h>
#include <string>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

// Debian's oneDNN shares its work through OpenMP, whose number of threads is a setting of each thread. A product here is one
// task of many, so each thread asks for one. The runtime is looked up by name because it belongs to oneDNN.
void compute_alone() {
  thread_local const bool done = [] {
    using SetThreads = void (*)(int);
    const auto set_threads = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    if (set_threads != nullptr) set_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace

void multiply_here(const Product& p) {
  if (p.rows == 0 || p.columns == 0) return;
  compute_alone();
  const dnnl_status_t status = dnnl_sgemm(p.a.transposed ? 'T' : 'N', p.b.transposed ? 'T' : 'N', p.rows, p.columns,
                                          p.depth, p.factor, p.a.data.fp32(), p.a.stride, p.b.data.fp32(), p.b.stride,
                                          p.add ? 1.0f : 0.0f, p.to.fp32(), p.to_stride);
  if (status != dnnl_success) {
    throw FaultError("oneDNN refused a matrix product of " + std::to_string(p.rows) + " x " + std::to_string(p.depth) +
                     " x " + std::to_string(p.columns) + " (status " + std::to_string(status) + ").");
  }
}

}  // namespace aliquot
