// The simulated cuBLASLt, which replaces apps/models/cuda/cublaslt_cuda.cpp. Adds products in fp32 in the order of the
// inner dimension.
#include <cstdint>
#include <cstring>
#include <vector>

#include "apps/models/cuda/cublaslt_cuda.h"
#include "kernels/formats/element.h"
#include "tests/support/simulated/simulated_cuda.h"

namespace {

struct Description {
  bool transposed[2] = {};
  bool adds_bias = false;
  const void* bias = nullptr;
};
struct Layout {
  cudaDataType type;
  int64_t rows, columns, stride;
};

Description& of(cublasLtMatmulDesc_t handle) { return *reinterpret_cast<Description*>(handle); }
const Layout& of(cublasLtMatrixLayout_t handle) { return *reinterpret_cast<const Layout*>(handle); }

float get(const Layout& m, const void* data, int64_t row, int64_t column) {
  const int64_t i = column * m.stride + row;
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
  if (compute != CUBLAS_COMPUTE_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *handle = reinterpret_cast<cublasLtMatmulDesc_t>(new Description);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy_product(cublasLtMatmulDesc_t handle) {
  delete &of(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t set_product(cublasLtMatmulDesc_t handle, cublasLtMatmulDescAttributes_t which, const void* value,
                           size_t size_bytes) {
  if (size_bytes != (which == CUBLASLT_MATMUL_DESC_BIAS_POINTER ? sizeof(void*) : sizeof(int32_t)))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (which == CUBLASLT_MATMUL_DESC_BIAS_POINTER) {
    std::memcpy(&of(handle).bias, value, sizeof(void*));
    return CUBLAS_STATUS_SUCCESS;
  }
  int32_t number = 0;
  std::memcpy(&number, value, sizeof number);
  if (which == CUBLASLT_MATMUL_DESC_EPILOGUE && number == CUBLASLT_EPILOGUE_BIAS) {
    of(handle).adds_bias = true;
    return CUBLAS_STATUS_SUCCESS;
  }
  if (which != CUBLASLT_MATMUL_DESC_TRANSA && which != CUBLASLT_MATMUL_DESC_TRANSB) return CUBLAS_STATUS_NOT_SUPPORTED;
  of(handle).transposed[which == CUBLASLT_MATMUL_DESC_TRANSB] = number == CUBLAS_OP_T;
  return CUBLAS_STATUS_SUCCESS;
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

/// Rejects products that no GPU supports: operands of two types, or a 16-bit result whose type differs from that of the
/// operands. Finds no algorithm for a bias with 48 or more rows, so that tests also cover the caller's fallback.
cublasStatus_t find_algorithm(cublasLtHandle_t, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a,
                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                              cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t* result, int* count) {
  *count = 0;
  if (of(a).type != of(b).type || (of(d).type != CUDA_R_32F && of(d).type != of(a).type))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (of(description).adds_bias && of(d).rows >= 48) return CUBLAS_STATUS_SUCCESS;
  *result = {};
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t multiply(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha, const void* a,
                        cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                        const void* beta, const void* c, cublasLtMatrixLayout_t, void* d,
                        cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t*, void* workspace, size_t,
                        cudaStream_t stream) {
  if (workspace == nullptr || c != d) return CUBLAS_STATUS_INVALID_VALUE;
  float factor = 0, kept = 0;
  std::memcpy(&factor, alpha, sizeof factor);
  std::memcpy(&kept, beta, sizeof kept);
  const Layout first = of(a_layout), second = of(b_layout), to = of(d_layout);
  const Description how = of(description);
  aliquot::simulated::launch(stream, [=] {
    const std::vector<float> left = row_major(first, a, how.transposed[0]);
    const std::vector<float> right = row_major(second, b, !how.transposed[1]);  // makes the columns contiguous
    const int64_t depth = how.transposed[0] ? first.rows : first.columns;
    for (int64_t column = 0; column < to.columns; ++column) {
      for (int64_t row = 0; row < to.rows; ++row) {
        const float *l = left.data() + row * depth, *r = right.data() + column * depth;
        float sum = 0;
        for (int64_t k = 0; k < depth; ++k) sum += l[k] * r[k];
        // If beta is 0, the output may be uninitialized and is not read.
        const float more = kept == 0 ? 0.0f : kept * get(to, d, row, column);
        const float bias = how.adds_bias ? get({to.type, to.rows, 1, to.rows}, how.bias, row, 0) : 0.0f;
        put(to, d, row, column, factor * sum + more + bias);
      }
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

namespace aliquot {

const CublasLt& cublaslt() {
  static constexpr CublasLt kFunctions{.create = create,
                                       .destroy = destroy,
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
                                       .multiply = multiply};
  return kFunctions;
}

}  // namespace aliquot
