#pragma once
// What a model's code leaves behind for its own use, where the engine is to give it the memory.

#include <cstdint>
#include <functional>
#include <vector>

#pragma GCC visibility push(default)
namespace aliquot {

/// Of one use, for one micro-batch.
struct UseActivations {
  int64_t output_bytes = 0;   // its result, the next use's input
  int64_t kept_bytes = 0;     // what its forward leaves for its backward alone
  int64_t scratch_bytes = 0;  // while its code runs, forward or backward
  bool recomputable = false;  // what it keeps can be made again from its input: see Recompute
  // What else its backward reads of what forward saw; an output is there until the last that reads it.
  bool input_in_backward = true;
  bool output_in_backward = true;

  friend bool operator==(const UseActivations&, const UseActivations&) = default;
};

struct ActivationSpec {
  std::vector<UseActivations> uses;  // by use, as declared; empty: the model has memory of its own
  int64_t backward_bytes = 0;        // what backward hands from use to use: there from its first to its last

  friend bool operator==(const ActivationSpec&, const ActivationSpec&) = default;
};

/// Where they lie while a use's scope is open, on the engine's device, aligned to 256 bytes; null for what was declared to take nothing, or is
/// not there any more. Nothing is ever cleared: what is read was written by the model before.
struct UseMemory {
  int32_t use = -1;
  void* input = nullptr;  // the output of the use before
  void* output = nullptr;
  void* kept = nullptr;
  void* scratch = nullptr;
  void* backward = nullptr;  // in backward alone
  bool recomputed = false;   // what forward leaves in `kept` is gone before backward, which finds it made again
};

/// Runs forward of `memory.use` once more, so that `memory.kept` holds what it held. Its units are live and its input is
/// there; its output too, to be written once more or left alone, where backward reads it. Called from within backward(), on the rank's own thread;
/// enqueues on the compute stream as forward did. What it throws abandons the step.
using Recompute = std::function<void(const UseMemory& memory)>;

}  // namespace aliquot
#pragma GCC visibility pop
