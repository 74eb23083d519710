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
  /// Waits for the work, because the caller may then free its memory.
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

/// A capture that has not ended. An abort of the device's work ends it, because communicators wait for captures.
class WorkCapture::Open final : private AbortableWork {
 public:
  // In this mode, CUDA refuses unsafe calls, such as allocations, only on the thread that captures. Other ranks of the
  // process, and the threads of NCCL, may make them.
  explicit Open(Stream& origin) : device_(cuda_device(origin)), stream_(cuda_stream(origin)) {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing work");
    device_.add_graph(*this);
  }
  ~Open() override {
    device_.remove_graph(*this);
    abort();
  }

  std::unique_ptr<WorkGraph> end() {
    if (is_ended_) throw FaultError("a capture has ended, because its communicators were aborted");
    is_ended_ = true;
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "ending the capture of work");
    return std::make_unique<CudaWorkGraph>(device_, graph);
  }

 private:
  void abort() noexcept override {
    if (is_ended_) return;
    is_ended_ = true;
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(stream_, &graph);
    (void)cudaGetLastError();  // the capture may be invalid
    if (graph != nullptr) log_cuda_error(cudaGraphDestroy(graph), "destroying a captured graph");
  }

  CudaDevice& device_;
  cudaStream_t stream_;
  bool is_ended_ = false;
};

WorkCapture::WorkCapture(Stream& origin) : open_(std::make_unique<Open>(origin)) {}
WorkCapture::~WorkCapture() = default;

std::unique_ptr<WorkGraph> WorkCapture::end() {
  const std::unique_ptr<Open> ending = std::move(open_);
  return ending->end();
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
