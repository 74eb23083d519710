// Attention with the fused kernels of cuDNN, through the header-only cuDNN frontend. This code has been compiled, and
// cuDNN has accepted its graphs without a GPU, but it has never run on a GPU.
//
// With dynamic loading, the frontend finds the functions of cuDNN in the library to which cudnn_dlhandle refers. It
// also loads libcudart when it calls functions of the CUDA runtime, so the code below avoids these calls.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <array>
#include <cudnn_frontend.h>
#include <fmt/format.h>
#include <string_view>
#include <unordered_map>

#include "apps/models/cuda/cudnn_library.h"
#include "apps/models/cuda/fused_attention_cuda.h"
#include "kernels/device/device_cuda.h"
#include "kernels/system/error.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace aliquot {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

/// The numbers by which a plan finds the addresses of its tensors.
enum TensorId : int64_t { kQ = 1, kK, kV, kO, kLogSums, kOutputGradient, kDq, kDk, kDv };

struct AttentionGraph {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();

  AttentionGraph(const FusedAttentionProblem& problem, int sm_version) {
    const auto type = problem.type == DType::kFloat16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16;
    // Plans outlive the CUDA graphs of steps. Without a version, the frontend would ask the CUDA runtime for it.
    graph->set_io_data_type(type)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT)
        .set_sm_version(sm_version)
        .set_cuda_graph_retention(fe::CudaGraphRetention_t::NONE);
    problem.pass == AttentionPass::kForward ? add_forward(problem) : add_backward(problem);
  }

 private:
  static void place(Tensor_attributes& tensor, TensorId id, const AttentionTensor& at) {
    tensor.set_uid(id)
        .set_dim({at.extents.begin(), at.extents.end()})
        .set_stride({at.strides.begin(), at.strides.end()});
  }

  Tensor input(TensorId id, const AttentionTensor& at) const {
    Tensor_attributes tensor;
    place(tensor, id, at);
    if (id == kLogSums) tensor.set_data_type(fe::DataType_t::FLOAT);
    return graph->tensor(tensor);
  }

  static void output(const Tensor& tensor, TensorId id, const AttentionTensor& at) {
    tensor->set_output(true);
    place(*tensor, id, at);
    if (id == kLogSums) tensor->set_data_type(fe::DataType_t::FLOAT);
  }

  /// A query attends to keys from (query - window + 1) to itself. cuDNN keeps keys with key + left bound > query.
  template <class Options>
  static void mask(Options& options, const FusedAttentionProblem& problem) {
    options.set_attn_scale(problem.scale)
        .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
    if (problem.window != 0) options.set_diagonal_band_left_bound(static_cast<int>(problem.window));
  }

  void add_forward(const FusedAttentionProblem& p) {
    fe::graph::SDPA_attributes options;
    options.set_name("attention").set_generate_stats(true);
    mask(options, p);
    const auto [o, log_sums] = graph->sdpa(input(kQ, p.queries), input(kK, p.keys), input(kV, p.values), options);
    output(o, kO, p.output);
    output(log_sums, kLogSums, p.log_sums);
  }

  void add_backward(const FusedAttentionProblem& p) {
    fe::graph::SDPA_backward_attributes options;
    options.set_name("attention_backward").set_deterministic_algorithm(true);
    mask(options, p);
    const auto [dq, dk, dv] =
        graph->sdpa_backward(input(kQ, p.queries), input(kK, p.keys), input(kV, p.values), input(kO, p.output),
                             input(kOutputGradient, p.output), input(kLogSums, p.log_sums), options);
    output(dq, kDq, p.queries);
    output(dk, kDk, p.keys);
    output(dv, kDv, p.values);
  }
};

[[noreturn]] void fail(const std::string& action, const std::string& why) {
  throw FaultError(fmt::format("cuDNN {}: {}; use --attention own.", action, why));
}

void check_cudnn(cudnnStatus_t status, const char* action) {
  if (status != CUDNN_STATUS_SUCCESS) fail(action, fe::detail::get_error_string(status));
}

struct CudnnHandle {
  cudnnHandle_t handle = nullptr;
  cudaStream_t stream = nullptr;

  CudnnHandle() { check_cudnn(fe::detail::create_handle(&handle), "cannot be initialized"); }
  CudnnHandle(const CudnnHandle&) = delete;
  CudnnHandle& operator=(const CudnnHandle&) = delete;
  ~CudnnHandle() { fe::detail::destroy_handle(handle); }

  void use(cudaStream_t of_call) {
    if (stream == of_call) return;
    check_cudnn(fe::detail::set_stream(handle, of_call), "cannot use a stream");
    stream = of_call;
  }
};

class CudnnPlan final : public FusedAttentionPlan {
 public:
  CudnnPlan(CudnnHandle& handle, std::shared_ptr<Graph> graph, int64_t workspace_bytes)
      : handle_(handle), graph_(std::move(graph)), workspace_bytes_(workspace_bytes) {}

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  void run(Stream& stream, const FusedAttentionArrays& a) override {
    handle_.use(static_cast<CudaStream&>(stream).get());
    std::unordered_map<int64_t, void*> addresses{{kQ, const_cast<void*>(a.queries)},
                                                 {kK, const_cast<void*>(a.keys)},
                                                 {kV, const_cast<void*>(a.values)},
                                                 {kO, a.output},
                                                 {kLogSums, a.log_sums}};
    if (a.output_gradient != nullptr) {
      addresses.insert({{kOutputGradient, const_cast<void*>(a.output_gradient)},
                        {kDq, a.query_gradient},
                        {kDk, a.key_gradient},
                        {kDv, a.value_gradient}});
    }
    fe::error_t result = graph_->execute(handle_.handle, addresses, a.workspace);
    if (result.is_bad()) fail("cannot compute attention", result.get_message());
  }

 private:
  CudnnHandle& handle_;
  std::shared_ptr<Graph> graph_;
  int64_t workspace_bytes_;
};

class CudnnAttention final : public FusedAttentionLibrary {
 public:
  CudnnAttention(const CudnnLibrary& library, int sm_version) : name_(library.describe()), sm_version_(sm_version) {}

  std::string describe() const override { return name_; }

  std::unique_ptr<FusedAttentionPlan> plan(const FusedAttentionProblem& problem, std::string& reason) override {
    const auto graph = AttentionGraph(problem, sm_version_).graph;
    fe::error_t result = graph->validate();
    if (result.is_good()) result = graph->build_operation_graph(handle_.handle);
    if (result.is_good()) result = graph->create_execution_plans({fe::HeurMode_t::A});
    if (result.is_good()) result = graph->check_support();
    if (result.is_good()) result = graph->build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE);
    int64_t workspace_bytes = 0;
    if (result.is_good()) result = graph->get_workspace_size(workspace_bytes);
    if (result.is_good()) return std::make_unique<CudnnPlan>(handle_, graph, workspace_bytes);
    reason = result.get_message();
    return nullptr;
  }

 private:
  std::string name_;
  int sm_version_;
  CudnnHandle handle_;
};

int sm_version(const CudaDevice& device) {
  constexpr std::string_view kAction = "querying the compute capability of a GPU";
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.ordinal()), kAction);
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.ordinal()), kAction);
  return 10 * major + minor;
}

}  // namespace

std::unique_ptr<FusedAttentionLibrary> make_cudnn_attention(const CudaDevice& device) {
  // Ranks that are threads share the library.
  static const CudnnLibrary library = [] {
    const std::array files{fmt::format("libcudnn.so.{}", CUDNN_MAJOR)};
    const CudnnLibrary loaded = load_cudnn(files);
    fe::cudnn_dlhandle = loaded.handle;
    return loaded;
  }();
  return std::make_unique<CudnnAttention>(library, sm_version(device));
}

}  // namespace aliquot
