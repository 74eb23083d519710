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

/// Whether a bias fits in the scratch memory in fp32.
bool bias_fits(const Product& p) { return p.columns * element_bytes(DType::kFloat32) <= kGpuProductVectorBytes; }

void require_valid(const Product& p, const ProductEpilogue& extra) {
  const bool valid = (!p.add || extra.added.data == nullptr) &&
                     (extra.gelu == Gelu::kNone) == (extra.gelu_input.data == nullptr) &&
                     !(extra.gelu == Gelu::kBackward && extra.bias.data != nullptr);
  if (!valid) throw std::logic_error("a matrix product on a GPU has an epilogue that does not exist");
}

/// The only type of a bias that cuBLASLt supports.
DType bias_type(const GpuProduct& p) { return p.fp8.exist() ? DType::kBFloat16 : p.to.type; }

/// Returns the bias in the type that cuBLASLt supports.
ConstValues typed_bias(Stream& stream, const GpuProduct& p, ConstValues bias) {
  if (bias.data == nullptr || bias.type == bias_type(p)) return bias;
  cuda_kernels().cast(stream, vector_of(p), bias_type(p), bias.data, bias.type, p.columns);
  return {vector_of(p), bias_type(p)};
}

}  // namespace

class CudaProducts::Plans {
 public:
  Plans(const CudaDevice& device, const ProductSettings& settings)
      : rounding_(settings.rounding), measures_(settings.measures) {
    cublasLtHandle_t made = nullptr;
    check_products(cublaslt().create(&made), "cannot initialize cuBLASLt");
    library_.reset(made);
    if (settings.choices_file.empty()) return;
    choices_.emplace(settings.choices_file, fmt::format("{}\tcuBLASLt {}", device.model_name(), cublaslt().version()),
                     settings.measures);
  }

  cublasLtHandle_t library() const { return library_.get(); }

  ProductPlan& of(const GpuProduct& p, const ProductEpilogue& extra) {
    constexpr int kCandidates = 8;
    const ProductKey key(p, extra, rounding_);
    const auto known = plans_.find(key);
    if (known != plans_.end()) return known->second;
    ProductPlan plan = plan_product(library_.get(), p, extra, key, choices_ ? kCandidates : 1);
    if (choices_) apply_choice(plan, choice_text(key));
    return plans_.emplace(key, std::move(plan)).first->second;
  }

  /// Measures the candidates, unless the choice is final or `call` adds to its result in place. The choice becomes that
  /// of the first process that added this product to the file.
  void settle(Stream& stream, ProductPlan& plan, const ProductCall& call) {
    const bool in_place = call.kept != 0 && call.added == call.product.to.data;
    if (plan.is_final || in_place || is_captured(stream)) return;
    const int fastest = static_cast<int>(fastest_candidate(stream, plan, call));
    const auto first = static_cast<std::size_t>(choices_->add(plan.text, fastest));
    if (first < plan.candidates.size()) plan.chosen = first;
    plan.is_final = true;
  }

 private:
  void apply_choice(ProductPlan& plan, std::string text) const {
    const std::optional<int> choice = choices_->find(text);
    plan.text = std::move(text);
    plan.is_final = plan.candidates.size() <= 1 || choice.has_value() || !measures_;
    if (choice && static_cast<std::size_t>(*choice) < plan.candidates.size())
      plan.chosen = static_cast<std::size_t>(*choice);
  }

  OperandRounding rounding_;
  bool measures_;
  OwnedLibrary library_;
  std::optional<ProductChoices> choices_;
  std::map<ProductKey, ProductPlan> plans_;
};

CudaProducts::CudaProducts(CudaDevice& device, const ProductSettings& settings)
    : plans_(std::make_unique<Plans>(device, settings)) {}
CudaProducts::~CudaProducts() = default;

bool CudaProducts::supports(const GpuProduct& p, const ProductEpilogue& extra) {
  require_valid(p, extra);
  if (extra.added.data != nullptr && extra.added.type != p.to.type) return false;
  ProductEpilogue planned = extra;
  if (extra.bias.data != nullptr && extra.bias.type != bias_type(p)) {
    if (!bias_fits(p) || extra.scratch_bytes != kGpuProductScratchBytes) return false;
    planned.bias = {vector_of(p), bias_type(p)};  // where typed_bias() stores the converted bias
  }
  return plans_->of(p, planned).is_supported();
}

void CudaProducts::multiply(Stream& stream, const GpuProduct& p, const ProductEpilogue& extra) {
  if (!supports(p, extra))
    throw UnavailableError(product_text(p) + " is not supported by this version of cuBLASLt: use --device host");
  ProductEpilogue with = extra;
  with.bias = typed_bias(stream, p, extra.bias);
  ProductPlan& plan = plans_->of(p, with);
  set_pointers(plan, with);
  if (p.fp8.exist()) set_factors(plan, p.fp8);
  const bool adds_matrix = extra.added.data != nullptr;
  const ProductCall call{plans_->library(), p, adds_matrix ? extra.added.data : p.to.data,
                         adds_matrix ? extra.added_factor
                         : p.add     ? 1.0f
                                     : 0.0f,
                         plan.workspace_bytes};
  plans_->settle(stream, plan, call);
  run_product(stream, plan, plan.chosen, call);
}

}  // namespace aliquot
