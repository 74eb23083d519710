#include "kernels/gemm/product_plan_cuda.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <utility>

#include "kernels/device/device_cuda.h"
#include "kernels/device/time_marks.h"
#include "kernels/gemm/product_scratch.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

using Gelu = ProductEpilogue::Gelu;

cudaDataType_t data_type(Fp8Format format) { return format == Fp8Format::kE4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2; }
cudaDataType_t data_type(DType type) {
  return type == DType::kFloat32 ? CUDA_R_32F : type == DType::kFloat16 ? CUDA_R_16F : CUDA_R_16BF;
}

/// Returns the alignment of all rows of a matrix, in bytes: at most 64, and 0 if there is no matrix. Arenas align
/// arrays to at least 64 bytes. A larger limit could change the algorithm, and so the bits, with the place of an array.
int64_t alignment(ConstValues data, int64_t stride) {
  if (data.data == nullptr) return 0;
  const auto bits = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data.data)) | stride * element_bytes(data.type);
  return (bits | 64) & -(bits | 64);
}

cublasLtEpilogue_t epilogue_of(const ProductEpilogue& extra) {
  const bool has_bias = extra.bias.data != nullptr;
  if (extra.gelu == Gelu::kBackward) return CUBLASLT_EPILOGUE_DGELU;
  if (extra.gelu == Gelu::kForward) return has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  return has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/// cuBLASLt requires this alignment of its workspace.
constexpr int64_t kWorkspaceAlignment = 256;

/// Returns the size of the workspace that remains if its address must be rounded up.
int64_t workspace_bytes_of(const ProductEpilogue& extra) {
  const bool has_vector = extra.scratch_bytes == kGpuProductScratchBytes;
  const int64_t bytes = (has_vector ? kGpuProductWorkspaceBytes : extra.scratch_bytes) - kWorkspaceAlignment;
  return bytes < 0 ? 0 : bytes / kWorkspaceAlignment * kWorkspaceAlignment;
}

void* aligned_workspace(float* scratch) {
  const auto at = reinterpret_cast<uintptr_t>(scratch);
  return reinterpret_cast<void*>((at + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment);
}

OwnedLayout layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t made = nullptr;
  check_products(
      cublaslt().create_layout(&made, type, static_cast<uint64_t>(columns), static_cast<uint64_t>(rows), stride),
      "cannot create a matrix layout");
  return OwnedLayout(made);
}

OwnedLayout operand_layout(const Matrix& m, cudaDataType_t type, int64_t rows, int64_t columns) {
  if (m.transposed) std::swap(rows, columns);
  return layout(type, rows, columns, m.stride);
}

template <class Value>
void set(const OwnedProduct& product, cublasLtMatmulDescAttributes_t which, Value value) {
  check_products(cublaslt().set_product(product.get(), which, &value, sizeof value),
                 "cannot configure a matrix product");
}

OwnedProduct make_product(const ProductKey& key) {
  cublasLtMatmulDesc_t made = nullptr;
  const cublasComputeType_t sums = key.rounds_to_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check_products(cublaslt().create_product(&made, sums, CUDA_R_32F), "cannot configure a matrix product");
  OwnedProduct product(made);
  set(product, CUBLASLT_MATMUL_DESC_TRANSA, key.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(product, CUBLASLT_MATMUL_DESC_TRANSB, key.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (key.epilogue != CUBLASLT_EPILOGUE_DEFAULT) set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, key.epilogue);
  if (key.gelu_alignment != 0) set(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.to_stride);
  if (key.is_fp8 && key.bias_alignment != 0)
    set(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(CUDA_R_16BF));
  return product;
}

template <class Value>
void set_preference_attribute(const OwnedPreference& preference, cublasLtMatmulPreferenceAttributes_t which,
                              Value value) {
  check_products(cublaslt().set_preference(preference.get(), which, &value, sizeof value),
                 "cannot set preferences of a matrix product");
}

OwnedPreference make_preference(const ProductKey& key) {
  cublasLtMatmulPreference_t made = nullptr;
  check_products(cublaslt().create_preference(&made), "cannot set preferences of a matrix product");
  OwnedPreference preference(made);
  set_preference_attribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                           static_cast<uint64_t>(key.workspace_bytes));
  // Split-k products must add their parts in a fixed order, not with atomics.
  set_preference_attribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                           static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  const auto set_alignment = [&](cublasLtMatmulPreferenceAttributes_t which, int64_t bytes) {
    set_preference_attribute(preference, which, static_cast<uint32_t>(bytes));
  };
  set_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b_alignment);
  set_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a_alignment);
  set_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                key.added_alignment == 0 ? key.to_alignment : key.added_alignment);
  set_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.to_alignment);
  return preference;
}

/// What GpuProduct requires of products with fp8 operands.
bool is_valid_fp8(const ProductKey& key) {
  constexpr int64_t kExtent = 16, kAlignment = 16;
  const bool fits = key.rows % kExtent == 0 && key.columns % kExtent == 0 && key.depth % kExtent == 0;
  const bool is_aligned = key.a_alignment >= kAlignment && key.b_alignment >= kAlignment &&
                          key.to_alignment >= kAlignment &&
                          (key.added_alignment == 0 || key.added_alignment >= kAlignment);
  return fits && is_aligned && !key.a_transposed && key.b_transposed && key.result != DType::kFloat16 &&
         (key.a_format == Fp8Format::kE4M3 || key.b_format == Fp8Format::kE4M3);
}

/// cuBLASLt requires that rows of the input of a GELU are aligned to 16 bytes, and that their stride is a multiple of
/// eight elements. Some of its kernels load 16 bytes of a bias at a time.
bool has_aligned_vectors(const ProductKey& key) {
  const bool has_gelu = key.gelu_alignment != 0;
  return (key.bias_alignment == 0 || key.bias_alignment >= 16) &&
         (!has_gelu || (key.gelu_alignment >= 16 && key.to_stride % 8 == 0));
}

/// Whether an algorithm can add another matrix than the one that it overwrites.
bool adds_other_matrix(const cublasLtMatmulAlgo_t& algorithm) {
  int32_t supports = 0;
  size_t written = 0;
  const cublasStatus_t status = cublaslt().get_capability(&algorithm, CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT,
                                                          &supports, sizeof supports, &written);
  return status == CUBLAS_STATUS_SUCCESS && supports != 0;
}

}  // namespace

void check_products(cublasStatus_t status, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string sentence = what + ": cuBLASLt returned " + cublaslt().status_name(status);
  const bool lacking = status == CUBLAS_STATUS_NOT_INITIALIZED || status == CUBLAS_STATUS_ALLOC_FAILED ||
                       status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH;
  if (lacking) throw UnavailableError(sentence);
  throw FaultError(sentence);
}

ProductKey::ProductKey(const GpuProduct& p, const ProductEpilogue& extra, OperandRounding rounding)
    : rows(p.rows),
      columns(p.columns),
      depth(p.depth),
      a_stride(p.a.stride),
      b_stride(p.b.stride),
      to_stride(p.to_stride),
      a_transposed(p.a.transposed),
      b_transposed(p.b.transposed),
      rounds_to_tf32(p.a.data.type == DType::kFloat32 && rounding == OperandRounding::kTf32),
      is_fp8(p.fp8.exist()),
      a_format(p.fp8.a),
      b_format(p.fp8.b),
      operands(p.a.data.type),
      result(p.to.type),
      epilogue(epilogue_of(extra)),
      a_alignment(alignment(p.a.data, p.a.stride)),
      b_alignment(alignment(p.b.data, p.b.stride)),
      to_alignment(alignment(p.to, p.to_stride)),
      added_alignment(alignment(extra.added, p.to_stride)),
      bias_alignment(alignment(extra.bias, 0)),
      gelu_alignment(alignment(extra.gelu_input, p.to_stride)),
      workspace_bytes(workspace_bytes_of(extra)) {}

ProductPlan plan_product(cublasLtHandle_t library, const GpuProduct& p, const ProductEpilogue& extra,
                         const ProductKey& key, int most) {
  ProductPlan plan;
  if (!has_aligned_vectors(key) || (key.is_fp8 && !is_valid_fp8(key))) return plan;
  plan.workspace_bytes = key.workspace_bytes;
  plan.product = make_product(key);
  set_pointers(plan, extra);  // the heuristic reads their alignment
  if (key.is_fp8) set_factors(plan, p.fp8);
  const auto type = [&](const Matrix& m, Fp8Format format) {
    return key.is_fp8 ? data_type(format) : data_type(m.data.type);
  };
  plan.first = operand_layout(p.b, type(p.b, p.fp8.b), p.depth, p.columns);
  plan.second = operand_layout(p.a, type(p.a, p.fp8.a), p.rows, p.depth);
  plan.to = layout(data_type(p.to.type), p.rows, p.columns, p.to_stride);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
  int count = 0;
  const cublasStatus_t status =
      cublaslt().find_algorithm(library, plan.product.get(), plan.first.get(), plan.second.get(), plan.to.get(),
                                plan.to.get(), make_preference(key).get(), most, found.data(), &count);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_products(status, "cannot compute " + product_text(p));
  if (status != CUBLAS_STATUS_SUCCESS) return plan;
  found.resize(static_cast<std::size_t>(count));
  for (const cublasLtMatmulHeuristicResult_t& one : found) {
    if (one.state != CUBLAS_STATUS_SUCCESS) continue;
    if (extra.added.data == nullptr || adds_other_matrix(one.algo)) plan.candidates.push_back(one.algo);
  }
  return plan;
}

void set_pointers(const ProductPlan& plan, const ProductEpilogue& extra) {
  if (extra.bias.data != nullptr) set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, extra.bias.data);
  if (extra.gelu_input.data != nullptr)
    set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, extra.gelu_input.data);
}

// cuBLASLt's first operand is b.
void set_factors(const ProductPlan& plan, const Fp8Operands& operands) {
  set(plan.product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.b_factor);
  set(plan.product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.a_factor);
}

void run_product(Stream& stream, const ProductPlan& plan, std::size_t candidate, const ProductCall& call) {
  const GpuProduct& p = call.product;
  check_products(cublaslt().multiply(call.handle, plan.product.get(), &p.factor, p.b.data.data, plan.first.get(),
                                     p.a.data.data, plan.second.get(), &call.kept, call.added, plan.to.get(), p.to.data,
                                     plan.to.get(), &plan.candidates[candidate], aligned_workspace(p.scratch),
                                     static_cast<size_t>(call.workspace_bytes), cuda_stream(stream)),
                 "cannot compute " + product_text(p));
}

std::size_t fastest_candidate(Stream& stream, const ProductPlan& plan, const ProductCall& call) {
  constexpr std::size_t kRounds = 3, kRuns = 4;
  constexpr double kClearlyFaster = 0.97;
  const std::size_t count = plan.candidates.size();
  const std::unique_ptr<TimeMarks> marks = make_cuda_time_marks(cuda_device(stream), kRounds * (count + 1));
  for (std::size_t i = 0; i < count; ++i) run_product(stream, plan, i, call);  // loads their code
  std::size_t mark = 0;
  for (std::size_t round = 0; round < kRounds; ++round) {
    marks->set(stream, mark++);
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t run = 0; run < kRuns; ++run) run_product(stream, plan, i, call);
      marks->set(stream, mark++);
    }
  }
  stream.synchronize();
  std::vector<double> times(mark);
  marks->read(times);
  std::vector<double> shortest(count, std::numeric_limits<double>::infinity());
  for (std::size_t round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t begin = round * (count + 1) + i;
      shortest[i] = std::min(shortest[i], times[begin + 1] - times[begin]);
    }
  }
  const auto best = static_cast<std::size_t>(std::ranges::min_element(shortest) - shortest.begin());
  return shortest[best] < kClearlyFaster * shortest[0] ? best : 0;
}

std::string choice_text(const ProductKey& k) {
  const auto order = [](bool transposed) { return transposed ? "T" : "N"; };
  const auto fp8 = [](Fp8Format format) { return format == Fp8Format::kE4M3 ? "e4m3" : "e5m2"; };
  const std::string operands = k.is_fp8           ? fmt::format("{} x {}", fp8(k.a_format), fp8(k.b_format))
                               : k.rounds_to_tf32 ? std::string("tf32")
                                                  : std::string(name(k.operands));
  return fmt::format(
      "{} to {}, {} x {} x {}, strides {} {} {}, {}{}, epilogue {}, alignments {} {} {} {} {} {}, workspace {}",
      operands, name(k.result), k.rows, k.depth, k.columns, k.a_stride, k.b_stride, k.to_stride, order(k.a_transposed),
      order(k.b_transposed), static_cast<int>(k.epilogue), k.a_alignment, k.b_alignment, k.to_alignment,
      k.added_alignment, k.bias_alignment, k.gelu_alignment, k.workspace_bytes);
}

std::string product_text(const GpuProduct& p) {
  return fmt::format("a matrix product of {} operands with {} result, {} x {} x {} (rows x depth x columns)",
                     p.fp8.exist() ? "fp8" : name(p.a.data.type), name(p.to.type), p.rows, p.depth, p.columns);
}

}  // namespace aliquot
