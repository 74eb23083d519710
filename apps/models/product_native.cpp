#include "apps/models/product_native.h"

#include <array>
#include <dlfcn.h>
#include <dnnl.h>
#include <map>
#include <string>

#include "kernels/error.h"

namespace aliquot {
namespace {

void require(dnnl_status_t status, const Product& p) {
  if (status == dnnl_success) return;
  throw FaultError("oneDNN refused a matrix product of " + std::to_string(p.rows) + " x " + std::to_string(p.depth) +
                   " x " + std::to_string(p.columns) + " in bf16 (status " + std::to_string(status) + ").");
}

dnnl_data_type_t type_of(DType type) { return type == DType::kBFloat16 ? dnnl_bf16 : dnnl_f32; }

dnnl_memory_desc_t describe(DType type, int64_t rows, int64_t columns, int64_t stride, bool transposed) {
  const dnnl_dims_t extents{rows, columns}, strides{transposed ? 1 : stride, transposed ? stride : 1};
  dnnl_memory_desc_t description;
  dnnl_memory_desc_init_by_strides(&description, 2, extents, type_of(type), strides);
  return description;
}

// oneDNN's engine of the processor, and this thread's stream of it; they last as long as the program and the thread.
dnnl_engine_t cpu_engine() {
  static const dnnl_engine_t engine = [] {
    dnnl_engine_t made = nullptr;
    if (dnnl_engine_create(&made, dnnl_cpu, 0) != dnnl_success) throw FaultError("oneDNN finds no processor.");
    return made;
  }();
  return engine;
}

// A product made ready for its shape: memory is named anew at every run.
class Prepared {
 public:
  explicit Prepared(const Product& p) {
    const dnnl_memory_desc_t descriptions[3] = {describe(p.a.data.type, p.rows, p.depth, p.a.stride, p.a.transposed),
                                                describe(p.b.data.type, p.depth, p.columns, p.b.stride, p.b.transposed),
                                                describe(p.to.type, p.rows, p.columns, p.to_stride, false)};
    make_primitive(p, descriptions);
    require(dnnl_stream_create(&stream_, cpu_engine(), dnnl_stream_default_flags), p);
    for (size_t i = 0; i < 3; ++i) {
      require(dnnl_memory_create(&memories_[i], &descriptions[i], cpu_engine(), DNNL_MEMORY_NONE), p);
    }
  }
  ~Prepared() {
    for (const dnnl_memory_t memory : memories_) dnnl_memory_destroy(memory);
    dnnl_stream_destroy(stream_);
    dnnl_primitive_destroy(primitive_);
  }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  void run(const Product& p) {
    require(dnnl_memory_set_data_handle(memories_[0], const_cast<void*>(p.a.data.data)), p);
    require(dnnl_memory_set_data_handle(memories_[1], const_cast<void*>(p.b.data.data)), p);
    require(dnnl_memory_set_data_handle(memories_[2], p.to.data), p);
    const dnnl_exec_arg_t arguments[3] = {
        {DNNL_ARG_SRC, memories_[0]}, {DNNL_ARG_WEIGHTS, memories_[1]}, {DNNL_ARG_DST, memories_[2]}};
    require(dnnl_primitive_execute(primitive_, stream_, 3, arguments), p);
    require(dnnl_stream_wait(stream_), p);
  }

 private:
  void make_primitive(const Product& p, const dnnl_memory_desc_t* descriptions) {
    dnnl_matmul_desc_t matmul;
    require(dnnl_matmul_desc_init(&matmul, &descriptions[0], &descriptions[1], nullptr, &descriptions[2]), p);
    dnnl_primitive_attr_t attributes = nullptr;
    require(dnnl_primitive_attr_create(&attributes), p);
    if (p.factor != 1.0f) dnnl_primitive_attr_set_output_scales(attributes, 1, 0, &p.factor);
    dnnl_post_ops_t sum = nullptr;
    if (p.add && dnnl_post_ops_create(&sum) == dnnl_success) {
      dnnl_post_ops_append_sum(sum, 1.0f);
      dnnl_primitive_attr_set_post_ops(attributes, sum);
      dnnl_post_ops_destroy(sum);
    }
    dnnl_primitive_desc_t description = nullptr;
    const dnnl_status_t status = dnnl_primitive_desc_create(&description, &matmul, attributes, cpu_engine(), nullptr);
    dnnl_primitive_attr_destroy(attributes);
    require(status, p);
    const dnnl_status_t made = dnnl_primitive_create(&primitive_, description);
    dnnl_primitive_desc_destroy(description);
    require(made, p);
  }

  dnnl_primitive_t primitive_ = nullptr;
  dnnl_stream_t stream_ = nullptr;
  std::array<dnnl_memory_t, 3> memories_{};
};

// Everything that a primitive is made for.
using Shape = std::array<int64_t, 10>;

Shape shape_of(const Product& p) {
  const int64_t factor = static_cast<int64_t>(static_cast<double>(p.factor) * 0x1p40);
  return {p.rows,      p.columns,      p.depth,        p.a.stride, p.b.stride,
          p.to_stride, p.a.transposed, p.b.transposed, p.add,      factor * 2 + (p.to.type == DType::kBFloat16)};
}

}  // namespace

// Debian's oneDNN shares its work through OpenMP, whose number of threads is a thread's own. Here a tile is what is
// shared, so each thread that computes tiles asks for one. The runtime is looked up by name: it is oneDNN's, not ours.
void compute_alone() {
  thread_local const bool done = [] {
    using SetThreads = void (*)(int);
    const auto set_threads = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    if (set_threads != nullptr) set_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

void multiply_native(const Product& p) {
  if (p.rows == 0 || p.columns == 0) return;
  compute_alone();
  thread_local std::map<Shape, Prepared> prepared;
  prepared.try_emplace(shape_of(p), p).first->second.run(p);
}

}  // namespace aliquot
