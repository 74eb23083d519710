#include "apps/models/cuda/product_cuda.h"

#include <array>
#include <map>
#include <string>
#include <type_traits>

#include "apps/models/cuda/cublaslt_cuda.h"
#include "apps/models/cuda/gpu_scratch.h"
#include "kernels/device/device_cuda.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

void check_products(cublasStatus_t status, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string sentence = what + ": cuBLASLt returned " + cublaslt().status_name(status);
  const bool lacking = status == CUBLAS_STATUS_NOT_INITIALIZED || status == CUBLAS_STATUS_ALLOC_FAILED ||
                       status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH;
  if (lacking) throw UnavailableError(sentence);
  throw FaultError(sentence);
}

/// Frees a handle of cuBLASLt with the function `destroy`.
template <class Handle, auto destroy>
struct HandleDeleter {
  void operator()(std::remove_pointer_t<Handle>* handle) const { (cublaslt().*destroy)(handle); }
};
template <class Handle, auto destroy>
using OwnedHandle = std::unique_ptr<std::remove_pointer_t<Handle>, HandleDeleter<Handle, destroy>>;
using OwnedLibrary = OwnedHandle<cublasLtHandle_t, &CublasLt::destroy>;
using OwnedProduct = OwnedHandle<cublasLtMatmulDesc_t, &CublasLt::destroy_product>;
using OwnedLayout = OwnedHandle<cublasLtMatrixLayout_t, &CublasLt::destroy_layout>;
using OwnedPreference = OwnedHandle<cublasLtMatmulPreference_t, &CublasLt::destroy_preference>;

cudaDataType_t data_type(DType type) {
  return type == DType::kFloat32 ? CUDA_R_32F : type == DType::kFloat16 ? CUDA_R_16F : CUDA_R_16BF;
}

/// The properties of a product that determine its plan: extents, strides, transpositions, types and alignments.
/// Alignments are in bytes, at most 16.
using Key = std::array<int64_t, 14>;

int64_t alignment(const void* data, int64_t stride, DType type) {
  const auto bits = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data)) | stride * element_bytes(type) | 16;
  return bits & -bits;
}

Key key_of(const Product& p, ConstValues bias) {
  return {p.rows,
          p.columns,
          p.depth,
          p.a.stride,
          p.b.stride,
          p.to_stride,
          p.a.transposed,
          p.b.transposed,
          static_cast<int64_t>(p.a.data.type),
          static_cast<int64_t>(p.to.type),
          alignment(p.a.data.data, p.a.stride, p.a.data.type),
          alignment(p.b.data.data, p.b.stride, p.b.data.type),
          alignment(p.to.data, p.to_stride, p.to.type),
          bias.data == nullptr ? 0 : alignment(bias.data, 0, bias.type)};
}

OwnedLayout layout(const Matrix& m, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t made = nullptr;
  if (m.transposed) std::swap(rows, columns);
  check_products(cublaslt().create_layout(&made, data_type(m.data.type), static_cast<uint64_t>(columns),
                                          static_cast<uint64_t>(rows), m.stride),
                 "cannot create a matrix layout");
  return OwnedLayout(made);
}

template <class Value>
void set(const OwnedProduct& product, cublasLtMatmulDescAttributes_t which, Value value) {
  check_products(cublaslt().set_product(product.get(), which, &value, sizeof value),
                 "cannot configure a matrix product");
}

void set_transposed(const OwnedProduct& product, cublasLtMatmulDescAttributes_t which, bool transposed) {
  set(product, which, transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
}

template <class Value>
void set_preference_attribute(const OwnedPreference& preference, cublasLtMatmulPreferenceAttributes_t which,
                              Value value) {
  check_products(cublaslt().set_preference(preference.get(), which, &value, sizeof value),
                 "cannot set preferences of a matrix product");
}

OwnedPreference preference_of(const Key& key) {
  cublasLtMatmulPreference_t made = nullptr;
  check_products(cublaslt().create_preference(&made), "cannot set preferences of a matrix product");
  OwnedPreference preference(made);
  set_preference_attribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                           static_cast<uint64_t>(kGpuProductScratchBytes));
  // Split-k products must add their parts in a fixed order, not with atomics.
  set_preference_attribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                           static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set_preference_attribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(key[11]));
  set_preference_attribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(key[10]));
  set_preference_attribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(key[12]));
  set_preference_attribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(key[12]));
  return preference;
}

std::string product_text(const Product& p) {
  return "a matrix product of " + std::string(name(p.a.data.type)) + " operands with " + std::string(name(p.to.type)) +
         " result, " + std::to_string(p.rows) + " x " + std::to_string(p.depth) + " x " + std::to_string(p.columns) +
         " (rows x depth x columns)";
}

}  // namespace

/// cuBLASLt's matrices are column-major, so it reads a row-major matrix as its transpose. It therefore computes
/// to^T = b^T a^T.
struct CudaProducts::Plan {
  OwnedProduct product;
  OwnedLayout first, second, to;
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false;  // whether cuBLASLt supports the product
};

struct CudaProducts::PlanCache {
  OwnedLibrary library;
  std::map<Key, Plan> plans;
};

const CudaProducts::Plan* CudaProducts::plan_of(const Product& p, ConstValues bias) {
  const Key key = key_of(p, bias);
  const auto [at, is_new] = plan_cache_->plans.try_emplace(key);
  Plan& plan = at->second;
  if (!is_new) return plan.found ? &plan : nullptr;
  cublasLtMatmulDesc_t made = nullptr;
  check_products(cublaslt().create_product(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cannot configure a matrix product");
  plan.product.reset(made);
  set_transposed(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, p.b.transposed);
  set_transposed(plan.product, CUBLASLT_MATMUL_DESC_TRANSB, p.a.transposed);
  if (bias.data != nullptr) {
    set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.data);
  }
  plan.first = layout(p.b, p.depth, p.columns);
  plan.second = layout(p.a, p.rows, p.depth);
  plan.to = layout({p.to, p.to_stride}, p.rows, p.columns);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      cublaslt().find_algorithm(plan_cache_->library.get(), plan.product.get(), plan.first.get(), plan.second.get(),
                                plan.to.get(), plan.to.get(), preference_of(key).get(), 1, &found, &count);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_products(status, "cannot compute " + product_text(p));
  plan.found = status == CUBLAS_STATUS_SUCCESS && count > 0;
  plan.algorithm = found.algo;
  return plan.found ? &plan : nullptr;
}

CudaProducts::CudaProducts() : plan_cache_(std::make_unique<PlanCache>()) {
  cublasLtHandle_t library = nullptr;
  check_products(cublaslt().create(&library), "cannot initialize cuBLASLt");
  plan_cache_->library.reset(library);
}

CudaProducts::~CudaProducts() = default;

bool CudaProducts::adds_bias(const Product& p, ConstValues bias) {
  return bias.type == p.to.type && plan_of(p, bias) != nullptr;
}

void CudaProducts::multiply(Stream& stream, const Product& p, ConstValues bias) {
  const cudaStream_t queue = cuda_stream(stream);
  const Plan* known = plan_of(p, bias);
  if (known == nullptr)
    throw UnavailableError(product_text(p) + " is not supported by this version of cuBLASLt: use --device host");
  const Plan& plan = *known;
  if (bias.data != nullptr) set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.data);
  const float factor = p.factor, kept = p.add ? 1.0f : 0.0f;
  check_products(
      cublaslt().multiply(plan_cache_->library.get(), plan.product.get(), &factor, p.b.data.data, plan.first.get(),
                          p.a.data.data, plan.second.get(), &kept, p.to.data, plan.to.get(), p.to.data, plan.to.get(),
                          &plan.algorithm, p.scratch, static_cast<size_t>(kGpuProductScratchBytes), queue),
      "cannot compute " + product_text(p));
}

}  // namespace aliquot
