#pragma once
// How cuBLASLt computes one kind of product. Internal to CudaProducts.

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/gemm/cublaslt_cuda.h"
#include "kernels/gemm/product_cuda.h"

namespace aliquot {

/// Throws an error that names the status, unless it is a success: UnavailableError if the machine lacks something,
/// otherwise FaultError.
void check_products(cublasStatus_t status, const std::string& what);

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

/// The properties of a product that determine its plan. Alignments are in bytes, and 0 if there is no array.
struct ProductKey {
  int64_t rows, columns, depth, a_stride, b_stride, to_stride;
  bool a_transposed, b_transposed, rounds_to_tf32, is_fp8;
  Fp8Format a_format, b_format;  // only with is_fp8
  DType operands, result;
  cublasLtEpilogue_t epilogue;
  int64_t a_alignment, b_alignment, to_alignment, added_alignment, bias_alignment, gelu_alignment;
  int64_t workspace_bytes;

  ProductKey(const GpuProduct& product, const ProductEpilogue& extra, OperandRounding rounding);
  auto operator<=>(const ProductKey&) const = default;
};

/// cuBLASLt's matrices are column-major, so it reads a row-major matrix as its transpose. It therefore computes
/// to^T = b^T a^T.
struct ProductPlan {
  OwnedProduct product;
  OwnedLayout first, second, to;
  std::vector<cublasLtMatmulAlgo_t> candidates;  // the best first; empty if cuBLASLt does not support the product
  std::size_t chosen = 0;
  bool is_final = true;  // false: a measurement may still change the choice
  std::string text;      // identifies the product in ProductChoices
  int64_t workspace_bytes = 0;

  bool is_supported() const { return !candidates.empty(); }
};

/// Asks cuBLASLt for up to `most` algorithms.
ProductPlan plan_product(cublasLtHandle_t library, const GpuProduct& product, const ProductEpilogue& extra,
                         const ProductKey& key, int most);

/// Sets the addresses of the bias and of the input of the GELU.
void set_pointers(const ProductPlan& plan, const ProductEpilogue& extra);

/// The arguments of cublasLtMatmul() for one product. All pointers are in GPU memory.
struct ProductCall {
  cublasLtHandle_t handle;
  const GpuProduct& product;
  const void* added;  // the matrix that is added to the product, or the result if there is none
  float kept;         // the factor of `added`
  int64_t workspace_bytes;
};
void run_product(Stream& stream, const ProductPlan& plan, std::size_t candidate, const ProductCall& call);

/// Runs every candidate several times, and returns the fastest. Prefers the first one if no other is clearly faster.
/// Waits for the stream. The call must give the same result when it is repeated.
std::size_t fastest_candidate(Stream& stream, const ProductPlan& plan, const ProductCall& call);

/// Identifies the key in ProductChoices.
std::string choice_text(const ProductKey& key);

/// Sets the factors of a planned product with fp8 operands.
void set_factors(const ProductPlan& plan, const Fp8Operands& operands);

/// Describes the product in messages.
std::string product_text(const GpuProduct& product);

}  // namespace aliquot
