#include <utility>

#include "kernels/device/device_cuda.h"
#include "kernels/device/work_graph.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

class CudaWorkGraph final : public WorkGraph, private AbortableWork {
 public:
  /// Takes ownership of `graph`.
  CudaWorkGraph(CudaDevice& device, cudaGraph_t graph) : device_(device) {
    const cudaError_t result = cudaGraphInstantiate(&exec_, graph, 0);
    log_cuda_error(cudaGraphDestroy(graph), "destroying a captured graph");
    check(result, "preparing a captured graph");
    device.add_graph(*this);
  }
  /// The work uses memory that the caller may free next.
  ~CudaWorkGraph() override {
    device_.drain();
    device_.remove_graph(*this);
    abort();
  }

  void launch(Stream& stream) override {
    if (exec_ == nullptr) throw FaultError("a graph was launched after its communicators were aborted");
    check(cudaGraphLaunch(exec_, cuda_stream(stream)), "launching a graph");
  }

 private:
  /// CUDA permits this while the graph runs.
  void abort() noexcept override {
    if (exec_ != nullptr) log_cuda_error(cudaGraphExecDestroy(exec_), "destroying a graph");
    exec_ = nullptr;
  }

  CudaDevice& device_;
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace

// In this mode, CUDA refuses unsafe calls, such as allocations, only on the thread that captures. Other ranks of the
// process, and the threads of NCCL, may make them.
WorkCapture::WorkCapture(Stream& origin) : origin_(origin) {
  check(cudaStreamBeginCapture(cuda_stream(origin), cudaStreamCaptureModeThreadLocal), "capturing work");
}

WorkCapture::~WorkCapture() {
  if (!open_) return;
  cudaGraph_t graph = nullptr;
  (void)cudaStreamEndCapture(static_cast<CudaStream&>(origin_).get(), &graph);
  (void)cudaGetLastError();  // the capture may be invalid
  if (graph != nullptr) log_cuda_error(cudaGraphDestroy(graph), "destroying a captured graph");
}

std::unique_ptr<WorkGraph> WorkCapture::end() {
  open_ = false;
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(cuda_stream(origin_), &graph), "ending the capture of work");
  return std::make_unique<CudaWorkGraph>(cuda_device(origin_), graph);
}

bool is_captured(Stream& stream) {
  const auto* cuda = dynamic_cast<CudaStream*>(&stream);
  return cuda != nullptr && cuda->is_captured();
}

bool can_capture(Stream& stream) {
  const auto* cuda = dynamic_cast<CudaStream*>(&stream);
  return cuda != nullptr && cuda->get() != nullptr && cuda->get() != cudaStreamLegacy;
}

}  // namespace aliquot
