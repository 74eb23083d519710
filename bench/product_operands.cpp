#include "bench/product_operands.h"

#include <algorithm>
#include <dlfcn.h>

#include "apps/models/layers/loss.h"
#include "apps/models/shape.h"
#include "kernels/gemm/product.h"

namespace aliquot {
namespace {

constexpr int64_t kRows = 256;
/// The size of all sets of a rank. Larger than its share of the last cache of today's processors.
constexpr int64_t kBytesOfSets = int64_t{512} << 20;

/// dnnl_sgemm of oneDNN's C interface, for row-major matrices: c = alpha * a * b + beta * c.
using Sgemm = int (*)(char, char, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*, int64_t, float,
                      float*, int64_t);

Sgemm find_sgemm() {
  for (const char* library : {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"}) {
    void* const handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) continue;
    if (void* const function = ::dlsym(handle, "dnnl_sgemm")) return reinterpret_cast<Sgemm>(function);
  }
  return nullptr;
}

Sgemm sgemm() {
  static const Sgemm function = find_sgemm();
  return function;
}

HugeArray array(int64_t count, DType type) { return HugeArray(count * element_bytes(type)); }

float* fp32(HugeArray& array) { return reinterpret_cast<float*>(array.data()); }

}  // namespace

std::vector<StepProduct> step_products() {
  const ModelShape shape = find_model_preset("gpt2-124m")->shape;
  const int64_t width = shape.width, hidden = shape.hidden;
  const int layers = static_cast<int>(shape.layers);
  const auto tiles =
      static_cast<int>((shape.vocabulary + kLossTileEntries - 1) / kLossTileEntries);  // the last is 2 % smaller
  std::vector<StepProduct> products;
  const auto add = [&](const std::string& name, int64_t inputs, int64_t outputs, bool outputs_first, int count) {
    products.push_back({name + "/forward", kRows, inputs, outputs, outputs_first, ProductPass::kForward, count});
    products.push_back({name + "/inputs", kRows, inputs, outputs, outputs_first, ProductPass::kInputs, count});
    products.push_back({name + "/weights", kRows, inputs, outputs, outputs_first, ProductPass::kWeights, count});
  };
  add("qkv", width, 3 * width, false, layers);
  add("projection", width, width, false, layers);
  add("up", width, hidden, false, layers);
  add("down", hidden, width, false, layers);
  add("loss", width, kLossTileEntries, true, tiles);
  return products;
}

bool has_onednn() { return sgemm() != nullptr; }

ProductOperands::ProductOperands(const StepProduct& product, DType type)
    : product_(product),
      type_(type),
      scratch_(
          array(product_scratch_elements(type, DType::kFloat32, selected_bf16_product_method()), DType::kFloat32)) {
  const int64_t weights = product.inputs * product.outputs;
  const int64_t values = product.rows * (product.inputs + product.outputs);
  const int64_t set_bytes = (weights + values) * element_bytes(type) + weights * element_bytes(DType::kFloat32);
  sets_.resize(static_cast<std::size_t>(std::max<int64_t>(2, kBytesOfSets / set_bytes)));
  for (Set& each : sets_) {
    each = {array(weights, type), array(product.rows * product.inputs, type),
            array(product.rows * product.outputs, product.outputs_first ? DType::kFloat32 : type),
            array(weights, DType::kFloat32)};
  }
}

void ProductOperands::run(int call) {
  Set& on = set(call);
  const Linear linear{.weight = {on.weight.data(), type_},
                      .bias = nullptr,
                      .rows = product_.rows,
                      .inputs = product_.inputs,
                      .outputs = product_.outputs,
                      .outputs_first = product_.outputs_first,
                      .scratch = fp32(scratch_)};
  const ConstValues inputs(on.inputs.data(), type_), outputs(on.outputs.data(), type_);
  switch (product_.pass) {
    case ProductPass::kForward:
      return linear_forward(pool_, linear, inputs, nullptr,
                            product_.outputs_first ? Values(fp32(on.outputs)) : Values(on.outputs.data(), type_));
    case ProductPass::kInputs: return linear_backward_input(pool_, linear, outputs, {on.inputs.data(), type_});
    case ProductPass::kWeights:
      return linear_backward_weights(pool_, linear, inputs, outputs, {fp32(on.gradient), nullptr, false});
  }
}

void ProductOperands::run_onednn(int call) {
  Set& on = set(call);
  const StepProduct& p = product_;
  float *const weight = fp32(on.weight), *const x = fp32(on.inputs), *const y = fp32(on.outputs);
  const int64_t weight_stride = p.outputs_first ? p.inputs : p.outputs;
  switch (p.pass) {
    case ProductPass::kForward:
      sgemm()('N', p.outputs_first ? 'T' : 'N', p.rows, p.outputs, p.inputs, 1, x, p.inputs, weight, weight_stride, 0,
              y, p.outputs);
      return;
    case ProductPass::kInputs:
      sgemm()('N', p.outputs_first ? 'N' : 'T', p.rows, p.inputs, p.outputs, 1, y, p.outputs, weight, weight_stride, 0,
              x, p.inputs);
      return;
    case ProductPass::kWeights:
      if (p.outputs_first) {
        sgemm()('T', 'N', p.outputs, p.inputs, p.rows, 1, y, p.outputs, x, p.inputs, 0, fp32(on.gradient), p.inputs);
      } else {
        sgemm()('T', 'N', p.inputs, p.outputs, p.rows, 1, x, p.inputs, y, p.outputs, 0, fp32(on.gradient), p.outputs);
      }
  }
}

}  // namespace aliquot
