// The simulated cuBLASLt, which replaces kernels/gemm/cublaslt_cuda.cpp. Adds products in fp32 in the order of the
// inner dimension.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <thread>
#include <vector>

#include "kernels/formats/element.h"
#include "kernels/formats/float8.h"
#include "kernels/gemm/cublaslt_cuda.h"
#include "tests/support/simulated/simulated_cuda.h"

namespace {

struct Description {
  bool transposed[2] = {};
  bool rounds_to_tf32 = false;
  int32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  const void* gelu_input = nullptr;
  int64_t gelu_stride = 0;
  int32_t bias_type = -1;  // -1: that of the result
  const float* factors[2] = {};

  bool is(std::initializer_list<int32_t> epilogues) const {
    for (const int32_t one : epilogues) {
      if (one == epilogue) return true;
    }
    return false;
  }
  bool adds_bias() const { return is({CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS}); }
  bool computes_gelu() const { return is({CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS}); }
  bool reads_gelu() const { return is({CUBLASLT_EPILOGUE_DGELU}); }
};
struct Layout {
  cudaDataType type;
  int64_t rows, columns, stride;
};

Description& of(cublasLtMatmulDesc_t handle) { return *reinterpret_cast<Description*>(handle); }
const Layout& of(cublasLtMatrixLayout_t handle) { return *reinterpret_cast<const Layout*>(handle); }

bool is_fp8(const Layout& m) { return m.type == CUDA_R_8F_E4M3 || m.type == CUDA_R_8F_E5M2; }

float get(const Layout& m, const void* data, int64_t row, int64_t column) {
  const int64_t i = column * m.stride + row;
  if (is_fp8(m)) {
    const auto format = m.type == CUDA_R_8F_E4M3 ? aliquot::Fp8Format::kE4M3 : aliquot::Fp8Format::kE5M2;
    return aliquot::fp8_to_float(static_cast<const uint8_t*>(data)[i], format);
  }
  if (m.type == CUDA_R_32F) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return m.type == CUDA_R_16F ? aliquot::fp16_to_float(bits) : aliquot::bf16_to_float(bits);
}

void put(const Layout& m, void* data, int64_t row, int64_t column, float value) {
  const int64_t i = column * m.stride + row;
  if (m.type == CUDA_R_32F) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<uint16_t*>(data)[i] =
        m.type == CUDA_R_16F ? aliquot::float_to_fp16(value) : aliquot::float_to_bf16(value);
  }
}

/// Returns op(matrix) as fp32 in row-major order.
std::vector<float> row_major(const Layout& m, const void* data, bool transposed) {
  const int64_t rows = transposed ? m.columns : m.rows, columns = transposed ? m.rows : m.columns;
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      values[static_cast<size_t>(r * columns + c)] = transposed ? get(m, data, c, r) : get(m, data, r, c);
    }
  }
  return values;
}

size_t version() { return 130100; }
const char* status_name(cublasStatus_t) { return "error of the simulated cuBLASLt"; }
cublasStatus_t create(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t create_product(cublasLtMatmulDesc_t* handle, cublasComputeType_t compute, cudaDataType_t) {
  if (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32) return CUBLAS_STATUS_NOT_SUPPORTED;
  *handle = reinterpret_cast<cublasLtMatmulDesc_t>(
      new Description{.rounds_to_tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy_product(cublasLtMatmulDesc_t handle) {
  delete &of(handle);
  return CUBLAS_STATUS_SUCCESS;
}
template <class Value>
cublasStatus_t assign(Value& to, const void* value, size_t size_bytes) {
  if (size_bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, sizeof to);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t set_product(cublasLtMatmulDesc_t handle, cublasLtMatmulDescAttributes_t which, const void* value,
                           size_t size_bytes) {
  Description& to = of(handle);
  switch (which) {
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return assign(to.bias, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return assign(to.gelu_input, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return assign(to.gelu_stride, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return assign(to.bias_type, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return assign(to.factors[0], value, size_bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return assign(to.factors[1], value, size_bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: {
      const cublasStatus_t status = assign(to.epilogue, value, size_bytes);
      const bool known = to.adds_bias() || to.computes_gelu() || to.reads_gelu();
      return known ? status : CUBLAS_STATUS_NOT_SUPPORTED;
    }
    case CUBLASLT_MATMUL_DESC_TRANSA:
    case CUBLASLT_MATMUL_DESC_TRANSB: {
      int32_t operation = 0;
      const cublasStatus_t status = assign(operation, value, size_bytes);
      to.transposed[which == CUBLASLT_MATMUL_DESC_TRANSB] = operation == CUBLAS_OP_T;
      return status;
    }
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t create_layout(cublasLtMatrixLayout_t* handle, cudaDataType type, uint64_t rows, uint64_t columns,
                             int64_t stride) {
  if (stride < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy_layout(cublasLtMatrixLayout_t handle) {
  delete &of(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t create_preference(cublasLtMatmulPreference_t* handle) {
  *handle = reinterpret_cast<cublasLtMatmulPreference_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy_preference(cublasLtMatmulPreference_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t set_preference(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

/// The documented requirements of products with fp8 operands on a Hopper GPU. `d` is the layout of the result, and that
/// of the matrix that is added.
bool is_valid_fp8(const Description& how, const Layout& a, const Layout& b, const Layout& d) {
  const auto is_aligned = [](const Layout& m) {
    const int64_t element_bytes = is_fp8(m) ? 1 : m.type == CUDA_R_32F ? 4 : 2;
    return m.rows % 16 == 0 && m.columns % 16 == 0 && m.stride * element_bytes % 16 == 0;
  };
  const bool types = is_fp8(a) && is_fp8(b) && (a.type == CUDA_R_8F_E4M3 || b.type == CUDA_R_8F_E4M3) &&
                     (d.type == CUDA_R_32F || d.type == CUDA_R_16BF);
  const bool bias = !how.adds_bias() || how.bias_type == CUDA_R_16BF || (how.bias_type == -1 && d.type == CUDA_R_16BF);
  return types && bias && !how.rounds_to_tf32 && how.transposed[0] && !how.transposed[1] && is_aligned(a) &&
         is_aligned(b) && is_aligned(d) && how.factors[0] != nullptr && how.factors[1] != nullptr;
}

/// Rejects products that no GPU supports: operands of two types, or a 16-bit result whose type differs from that of the
/// operands. Products with fp8 operands have other requirements. Finds no algorithm for an epilogue if the result has
/// 48 to 95 rows, so that tests also cover the caller's fallback. If the caller wants several algorithms, returns four:
/// the second is the fastest, and the third cannot run.
cublasStatus_t find_algorithm(cublasLtHandle_t, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a,
                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                              cublasLtMatmulPreference_t, int most, cublasLtMatmulHeuristicResult_t* results,
                              int* count) {
  *count = 0;
  const bool has_factors = of(description).factors[0] != nullptr || of(description).factors[1] != nullptr;
  if (is_fp8(of(a)) || is_fp8(of(b)) || has_factors) {
    if (!is_valid_fp8(of(description), of(a), of(b), of(d))) return CUBLAS_STATUS_NOT_SUPPORTED;
  } else if (of(a).type != of(b).type || (of(d).type != CUDA_R_32F && of(d).type != of(a).type)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const bool has_epilogue = of(description).epilogue != CUBLASLT_EPILOGUE_DEFAULT;
  if (has_epilogue && of(d).rows >= 48 && of(d).rows < 96) return CUBLAS_STATUS_SUCCESS;
  *count = std::min(most, 4);
  for (int i = 0; i < *count; ++i) {
    results[i] = {};
    results[i].state = i == 2 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    results[i].algo.data[0] = *count > 1 && i != 1;  // whether the algorithm is slow
  }
  return CUBLAS_STATUS_SUCCESS;
}

/// The tanh form of the GELU and its derivative, in double.
double gelu_tanh(double x) { return std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }
float gelu(float x) { return static_cast<float>(0.5 * x * (1 + gelu_tanh(x))); }
float gelu_slope(float x) {
  const double t = gelu_tanh(x), inner = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  return static_cast<float>(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner);
}

/// Rounds to 10 bits after the point, to nearest with ties away from zero.
float to_tf32(float value) {
  if (!std::isfinite(value)) return value;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(value) + 0x1000u) & ~0x1fffu);
}

/// The operands of a call, and where its results go.
struct Call {
  Description how;
  Layout to;
  float factor = 1, kept = 0, operand_factor = 1;
  const void* c;
  void* d;
  int64_t depth = 0;
  std::vector<float> left = {}, right = {};  // both with contiguous depth

  float sum(int64_t row, int64_t column) const {
    const float *l = left.data() + row * depth, *r = right.data() + column * depth;
    float sum = 0;
    for (int64_t k = 0; k < depth; ++k) sum += l[k] * r[k];
    // If beta is 0, the output may be uninitialized and is not read.
    const float more = kept == 0 ? 0.0f : kept * get(to, c, row, column);
    const auto bias_type = how.bias_type == -1 ? to.type : static_cast<cudaDataType>(how.bias_type);
    const float bias = how.adds_bias() ? get({bias_type, to.rows, 1, to.rows}, how.bias, row, 0) : 0.0f;
    return factor * operand_factor * sum + more + bias;
  }
  void store() const {
    const Layout gelu_input{to.type, to.rows, to.columns, how.gelu_stride};
    for (int64_t column = 0; column < to.columns; ++column) {
      for (int64_t row = 0; row < to.rows; ++row) {
        float value = sum(row, column);
        if (how.computes_gelu()) {
          put(gelu_input, const_cast<void*>(how.gelu_input), row, column, value);
          value = gelu(value);
        }
        if (how.reads_gelu()) value *= gelu_slope(get(gelu_input, how.gelu_input, row, column));
        put(to, d, row, column, value);
      }
    }
  }
};

/// A product may write all of its workspace. Overwrites only both ends, to save time.
void overwrite_ends(std::byte* workspace, size_t size_bytes) {
  const size_t end_bytes = std::min(size_bytes / 2, size_t{4096});
  std::memset(workspace, 0xff, end_bytes);
  std::memset(workspace + size_bytes - end_bytes, 0xff, end_bytes);
}

bool is_valid_fp8(const Call& call, const void* a, const void* b) {
  for (const void* at : {a, b, call.c, static_cast<const void*>(call.d)}) {
    if (reinterpret_cast<uintptr_t>(at) % 16 != 0) return false;
  }
  return call.how.factors[0] != nullptr && call.how.factors[1] != nullptr;
}

bool is_valid(const Description& how, const Layout& to) {
  if (how.adds_bias() != (how.bias != nullptr)) return false;
  if (!how.computes_gelu() && !how.reads_gelu()) return how.gelu_input == nullptr;
  return how.gelu_input != nullptr && reinterpret_cast<uintptr_t>(how.gelu_input) % 16 == 0 &&
         how.gelu_stride >= to.rows && how.gelu_stride % 8 == 0;
}

cublasStatus_t multiply(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha, const void* a,
                        cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                        const void* beta, const void* c, cublasLtMatrixLayout_t, void* d,
                        cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                        size_t workspace_bytes, cudaStream_t stream) {
  Call call{.how = of(description), .to = of(d_layout), .c = c, .d = d};
  if (reinterpret_cast<uintptr_t>(workspace) % 256 != 0 || !is_valid(call.how, call.to))
    return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&call.factor, alpha, sizeof call.factor);
  std::memcpy(&call.kept, beta, sizeof call.kept);
  const Layout first = of(a_layout), second = of(b_layout);
  if (is_fp8(first) && !is_valid_fp8(call, a, b)) return CUBLAS_STATUS_INVALID_VALUE;
  call.depth = call.how.transposed[0] ? first.rows : first.columns;
  const bool is_slow = algorithm->data[0] != 0;
  aliquot::simulated::launch(stream, [=]() mutable {
    overwrite_ends(static_cast<std::byte*>(workspace), workspace_bytes);
    if (is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (is_fp8(first)) call.operand_factor = *call.how.factors[0] * *call.how.factors[1];
    call.left = row_major(first, a, call.how.transposed[0]);
    call.right = row_major(second, b, !call.how.transposed[1]);
    if (call.how.rounds_to_tf32) {
      std::ranges::transform(call.left, call.left.begin(), to_tf32);
      std::ranges::transform(call.right, call.right.begin(), to_tf32);
    }
    call.store();
  });
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t get_capability(const cublasLtMatmulAlgo_t*, cublasLtMatmulAlgoCapAttributes_t which, void* value,
                              size_t size_bytes, size_t* written) {
  if (which != CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT || size_bytes != sizeof(int32_t))
    return CUBLAS_STATUS_INVALID_VALUE;
  const int32_t supports = 1;
  std::memcpy(value, &supports, sizeof supports);
  *written = sizeof supports;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

namespace aliquot {

const CublasLt& cublaslt() {
  static constexpr CublasLt kFunctions{.create = create,
                                       .destroy = destroy,
                                       .version = version,
                                       .status_name = status_name,
                                       .create_product = create_product,
                                       .destroy_product = destroy_product,
                                       .set_product = set_product,
                                       .create_layout = create_layout,
                                       .destroy_layout = destroy_layout,
                                       .create_preference = create_preference,
                                       .destroy_preference = destroy_preference,
                                       .set_preference = set_preference,
                                       .find_algorithm = find_algorithm,
                                       .get_capability = get_capability,
                                       .multiply = multiply};
  return kFunctions;
}

}  // namespace aliquot
