#pragma once
// Attention that a library computes on a GPU in one fused kernel. The only library is cuDNN. Tests replace it.

#include <map>
#include <memory>
#include <string>

#include "apps/models/cuda/fused_attention_tensors.h"
#include "kernels/device/device.h"

namespace aliquot {

class CudaDevice;

/// The arrays of a pass. Forward writes the output and the log sums. Backward reads them, and writes the gradients.
/// All are device pointers to the first element of a tensor of FusedAttentionProblem.
struct FusedAttentionArrays {
  const void *queries = nullptr, *keys = nullptr, *values = nullptr;
  void* output = nullptr;
  float* log_sums = nullptr;
  const void* output_gradient = nullptr;
  void *query_gradient = nullptr, *key_gradient = nullptr, *value_gradient = nullptr;
  void* workspace = nullptr;  // workspace_bytes() of the plan
};

/// A pass that a library has planned for one problem and GPU. Used from one thread.
class FusedAttentionPlan {
 public:
  virtual ~FusedAttentionPlan() = default;
  virtual int64_t workspace_bytes() const = 0;
  /// Enqueues the pass. Neither allocates GPU memory nor waits, so a capture may contain it. The plan must outlive the
  /// graphs of captures. Gives the same bits in every run.
  virtual void run(Stream& stream, const FusedAttentionArrays& arrays) = 0;
};

/// A library of one rank on one GPU. Used from one thread.
class FusedAttentionLibrary {
 public:
  virtual ~FusedAttentionLibrary() = default;
  /// For example "cuDNN 9.28.1".
  virtual std::string describe() const = 0;
  /// Returns null, and sets `reason`, if the library does not support the problem on this GPU.
  virtual std::unique_ptr<FusedAttentionPlan> plan(const FusedAttentionProblem& problem, std::string& reason) = 0;
};

/// Loads cuDNN for the device, which must be current and outlive the library. Throws UnavailableError, naming
/// --attention own, if this build lacks cuDNN or its library is missing or too old. This code has never run on a GPU.
std::unique_ptr<FusedAttentionLibrary> make_cudnn_attention(const CudaDevice& device);

/// The attention layers of one rank with a library. Plans each shape once. Call all functions from one thread.
class FusedAttention {
 public:
  explicit FusedAttention(std::unique_ptr<FusedAttentionLibrary> library) : library_(std::move(library)) {}

  /// Plans both passes unless they are planned, and returns whether the library supports both. Call it first while no
  /// work is captured. Throws UnavailableError if a plan needs a larger workspace than plans of memory count.
  bool supports(const AttentionShape& shape, DType type);

  /// `a` must have a supported shape, no cached rows, and scratch of gpu_attention_scratch_elements().
  void forward(Stream& stream, const AttentionForward& a);
  void backward(Stream& stream, const AttentionBackward& a);

  /// Names the library and, if it does not support a shape of supports(), the reason.
  std::string describe() const;

 private:
  FusedAttentionPlan* plan_of(AttentionPass pass, const AttentionShape& shape, DType type);

  std::unique_ptr<FusedAttentionLibrary> library_;
  std::map<FusedAttentionProblem, std::unique_ptr<FusedAttentionPlan>> plans_;  // null: not supported
  std::string reason_;                                                          // of the first unsupported shape
};

}  // namespace aliquot
