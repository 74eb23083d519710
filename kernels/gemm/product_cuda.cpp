#include "kernels/gemm/product_cuda.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <optional>
#include <stdexcept>

#include "kernels/device/device_cuda.h"
#include "kernels/device/work_graph.h"
#include "kernels/elementwise/kernels.h"
#include "kernels/gemm/product_choices.h"
#include "kernels/gemm/product_plan_cuda.h"
#include "kernels/gemm/product_scratch.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

using Gelu = ProductEpilogue::Gelu;

/// The part of the scratch memory that holds a vector.
void* vector_of(const Product& p) { return reinterpret_cast<std::byte*>(p.scratch) + kGpuProductWorkspaceBytes; }

int64_t depth_sum_count(const Product& p, const ProductEpilogue& extra) {
  return extra.summed == ProductEpilogue::Operand::kA ? p.rows : p.columns;
}

/// Whether the vectors of the epilogue fit in the scratch memory, in which they may be stored in fp32.
bool vectors_fit(const Product& p) {
  return std::max(p.rows, p.columns) * element_bytes(DType::kFloat32) <= kGpuProductVectorBytes;
}

void require_valid(const Product& p, const ProductEpilogue& extra) {
  const bool sums = extra.depth_sums.data != nullptr;
  const bool valid = (!p.add || extra.added.data == nullptr) &&
                     (extra.gelu == Gelu::kNone) == (extra.gelu_input.data == nullptr) &&
                     !(sums && (extra.gelu != Gelu::kNone || extra.bias.data != nullptr)) &&
                     !(extra.gelu == Gelu::kBackward && extra.bias.data != nullptr);
  if (!valid) throw std::logic_error("a matrix product on a GPU has an epilogue that does not exist");
}

/// Returns the bias in the type of the result. cuBLASLt supports no other type.
ConstValues typed_bias(Stream& stream, const Product& p, ConstValues bias) {
  if (bias.data == nullptr || bias.type == p.to.type) return bias;
  cuda_kernels().cast(stream, vector_of(p), p.to.type, bias.data, bias.type, p.columns);
  return {vector_of(p), p.to.type};
}

}  // namespace

class CudaProducts::Plans {
 public:
  Plans(const CudaDevice& device, const ProductSettings& settings) : fp32_(settings.fp32) {
    cublasLtHandle_t made = nullptr;
    check_products(cublaslt().create(&made), "cannot initialize cuBLASLt");
    library_.reset(made);
    if (settings.choices_file.empty()) return;
    choices_.emplace(settings.choices_file, fmt::format("{}\tcuBLASLt {}", device.model_name(), cublaslt().version()));
  }

  cublasLtHandle_t library() const { return library_.get(); }
  ProductKey key_of(const Product& p, const ProductEpilogue& extra) const { return {p, extra, fp32_}; }

  ProductPlan& of(const Product& p, const ProductKey& key) {
    constexpr int kCandidates = 8;
    const auto known = plans_.find(key);
    if (known != plans_.end()) return known->second;
    ProductPlan plan = plan_product(library_.get(), p, key, choices_ ? kCandidates : 1);
    if (choices_) apply_choice(plan, key);
    return plans_.emplace(key, std::move(plan)).first->second;
  }

  /// Chooses the fastest candidate, unless the choice is final or `call` adds to its result in place.
  void settle(Stream& stream, ProductPlan& plan, const ProductKey& key, const ProductCall& call) {
    const bool in_place = call.kept != 0 && call.added == call.product.to.data;
    if (plan.is_final || in_place || is_captured(stream)) return;
    choose_fastest(stream, plan, call);
    choices_->add(choice_text(key), static_cast<int>(plan.chosen));
    plan.is_final = true;
  }

 private:
  void apply_choice(ProductPlan& plan, const ProductKey& key) const {
    const std::optional<int> choice = choices_->find(choice_text(key));
    plan.is_final = plan.candidates.size() <= 1 || choice.has_value();
    if (choice && static_cast<std::size_t>(*choice) < plan.candidates.size())
      plan.chosen = static_cast<std::size_t>(*choice);
  }

  Fp32Products fp32_;
  OwnedLibrary library_;
  std::optional<ProductChoices> choices_;
  std::map<ProductKey, ProductPlan> plans_;
};

CudaProducts::CudaProducts(CudaDevice& device, const ProductSettings& settings)
    : plans_(std::make_unique<Plans>(device, settings)) {}
CudaProducts::~CudaProducts() = default;

bool CudaProducts::supports(const Product& p, const ProductEpilogue& extra) {
  require_valid(p, extra);
  ProductEpilogue planned = extra;
  if (extra.bias.data != nullptr || extra.depth_sums.data != nullptr) {
    if (!vectors_fit(p) || extra.scratch_bytes != kGpuProductScratchBytes) return false;
    // A converted bias is in the scratch memory.
    if (extra.bias.data != nullptr && extra.bias.type != p.to.type) planned.bias = {vector_of(p), p.to.type};
  }
  if (extra.added.data != nullptr && extra.added.type != p.to.type) return false;
  if (extra.depth_sums.data != nullptr && (extra.depth_sums.type != p.to.type || p.factor != 1.0f)) return false;
  if (extra.adds_depth_sums && extra.depth_sums.type != DType::kFloat32) return false;
  return plans_->of(p, plans_->key_of(p, planned)).is_supported();
}

void CudaProducts::multiply(Stream& stream, const Product& p, const ProductEpilogue& extra) {
  if (!supports(p, extra))
    throw UnavailableError(product_text(p) + " is not supported by this version of cuBLASLt: use --device host");
  ProductEpilogue with = extra;
  with.bias = typed_bias(stream, p, extra.bias);
  const ProductKey key = plans_->key_of(p, with);
  ProductPlan& plan = plans_->of(p, key);
  const bool sums = extra.depth_sums.data != nullptr, adds_matrix = extra.added.data != nullptr;
  void* sums_to = extra.adds_depth_sums ? vector_of(p) : extra.depth_sums.data;
  if (sums || with.bias.data != nullptr)
    set_pointer(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, sums ? sums_to : with.bias.data);
  if (extra.gelu_input.data != nullptr)
    set_pointer(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, extra.gelu_input.data);
  const ProductCall call{plans_->library(), p, adds_matrix ? extra.added.data : p.to.data,
                         adds_matrix ? extra.added_factor
                         : p.add     ? 1.0f
                                     : 0.0f,
                         key.workspace_bytes};
  plans_->settle(stream, plan, key, call);
  run_product(stream, plan, plan.chosen, call);
  if (sums && extra.adds_depth_sums)
    cuda_kernels().add(stream, extra.depth_sums.fp32(), static_cast<const float*>(vector_of(p)),
                       depth_sum_count(p, extra));
}

}  // namespace aliquot
