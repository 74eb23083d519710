#pragma once
// The activation memory that a model declares and the engine allocates.

#include <cstdint>
#include <functional>
#include <vector>

#pragma GCC visibility push(default)
namespace aliquot {

/// Sizes of the activations of one use of the model, for one micro-batch.
struct UseActivations {
  int64_t output_bytes = 0;   // output of the use, which is the input of the next use
  int64_t kept_bytes = 0;     // activations that only the backward of the same use reads
  int64_t scratch_bytes = 0;  // temporary memory while forward or backward of the use runs
  bool recomputable = false;  // the kept activations can be recomputed from the input: see Recompute
  // Whether backward reads the input and the output of the use. The engine frees an output after its last reader.
  bool input_in_backward = true;
  bool output_in_backward = true;
  /// Backward can run in two parts: first the gradients of activations (UseKind::kBackwardInput), later the gradients
  /// of parameters (UseKind::kBackwardWeights). Schedules such as PipelineSchedule::kZeroBubble use this. The two
  /// parts must compute the same bits as one backward.
  bool splits_backward = false;
  int64_t weight_inputs_bytes = 0;  // data that the first part writes for the second part

  friend bool operator==(const UseActivations&, const UseActivations&) = default;
};

struct ActivationSpec {
  std::vector<UseActivations> uses;  // in the declared order; empty: the model allocates its activations itself
  int64_t backward_bytes = 0;        // gradients of activations, passed from use to use during a backward pass

  friend bool operator==(const ActivationSpec&, const ActivationSpec&) = default;
};

/// Addresses of a use's buffers while its scope is open: device memory, aligned to 256 bytes. An address is null if the
/// declared size is 0 or the buffer has been freed. The engine never clears these buffers. UseKind says which of them
/// each part of a split backward may access.
struct UseMemory {
  int32_t use = -1;
  void* input = nullptr;  // output of the previous use
  void* output = nullptr;
  void* kept = nullptr;
  void* scratch = nullptr;
  void* backward = nullptr;       // null except in kBackward and kBackwardInput
  void* weight_inputs = nullptr;  // null except in kBackwardInput and kBackwardWeights
  bool recomputed = false;        // `kept` is freed after forward, and recomputed before backward
};

/// Repeats the forward of `memory.use` and thereby restores `memory.kept`. The parameters of the use and `memory.input`
/// are accessible. `memory.output` is not null if backward reads it; the function may rewrite it or leave it unchanged.
/// Called from backward() on the rank's thread. Must enqueue on the compute stream. An exception abandons the step.
using Recompute = std::function<void(const UseMemory& memory)>;

}  // namespace aliquot
#pragma GCC visibility pop
