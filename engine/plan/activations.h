#pragma once
// The activation memory that a model declares and the engine allocates.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/formats/dtype.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// What a collective of a use does, in the tensor group of a rank.
enum class CollectiveKind : uint8_t {
  kSum,         // gives each rank the sum of the data over all ranks
  kGather,      // gives each rank the rows of all ranks. Before, each rank has written its own rows.
  kScatterSum,  // gives each rank its own rows of the sum over all ranks. Its other rows keep their values.
};

/// The part of a use whose code runs a collective.
enum class UsePart : uint8_t {
  kForward,
  kBackward,         // a backward, or the first part of a split backward
  kBackwardWeights,  // a backward, or the second part of a split backward
};

/// A buffer of a use. See UseMemory.
enum class UseBuffer : uint8_t { kOutput, kSaved, kScratch, kBackward };

/// A collective inside the code of a use: it exchanges data between the ranks of a tensor group
/// (EngineOptions::tensor). The code runs it with UseMemory::run(). The data is a matrix of `rows` x `row_elements`
/// elements in a buffer of the use. Rank r of the group owns rows [r * n, (r + 1) * n) for n = rows_per_part(), as far
/// as they exist. The buffer must have space for n rows of each rank, and the collective may write to all of it.
///
/// A collective in kOutput or kSaved belongs to the forward, a collective in kBackward to the backward. A recompute
/// does not repeat collectives in kOutput. UseMemory::output is then null in the recompute. A whole backward runs the
/// collectives of both backward parts, so those of kBackward must be declared first.
struct UseCollective {
  std::string name;
  CollectiveKind kind = CollectiveKind::kSum;
  UsePart part = UsePart::kForward;
  UseBuffer buffer = UseBuffer::kOutput;
  int64_t offset_bytes = 0;  // of the data in the buffer, a multiple of 16
  int64_t rows = 0, row_elements = 0;
  DType dtype = DType::kFloat32;  // of the elements; sums need fp32, bf16 or fp16, and add in fp32
  bool in_recompute = true;       // whether a recompute repeats a collective of the forward

  /// Returns the number of rows of the part of one rank, in a tensor group of `tensor` ranks.
  int64_t rows_per_part(int tensor) const { return (rows + tensor - 1) / tensor; }
  /// Returns the size of the memory of the data, with space for full parts.
  int64_t size_bytes(int tensor) const { return rows_per_part(tensor) * tensor * row_elements * element_bytes(dtype); }

  friend bool operator==(const UseCollective&, const UseCollective&) = default;
};

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
  /// The collectives of the use. The collectives of each part of the use run in this order.
  std::vector<UseCollective> collectives = {};

  friend bool operator==(const UseActivations&, const UseActivations&) = default;
};

struct ActivationSpec {
  std::vector<UseActivations> uses;  // in the declared order; empty: the model allocates its activations itself
  int64_t backward_bytes = 0;        // gradients of activations, passed from use to use during a backward pass

  friend bool operator==(const ActivationSpec&, const ActivationSpec&) = default;
};

/// Runs the collectives of the open use.
class CollectiveRunner {
 public:
  virtual ~CollectiveRunner() = default;
  /// See UseMemory::run().
  virtual void run_collective(std::string_view name) = 0;
};

/// Addresses of a use's buffers while its scope is open: device memory, aligned to 256 bytes. An address is null if the
/// declared size is 0 or the buffer has been freed. Their contents are undefined before the model writes them. UseKind
/// says which of them each part of a split backward may access.
struct UseMemory {
  int32_t use = -1;
  void* input = nullptr;  // output of the previous use
  void* output = nullptr;
  void* kept = nullptr;
  void* scratch = nullptr;
  void* backward = nullptr;       // null except in kBackward and kBackwardInput
  void* weight_inputs = nullptr;  // null except in kBackwardInput and kBackwardWeights
  bool recomputed = false;        // `kept` is freed after forward, and recomputed before backward
  CollectiveRunner* collectives = nullptr;

  /// Enqueues the next declared collective of the use on the compute stream. `name` must be its name: throws UsageError
  /// otherwise, before data is sent. Without tensor groups, only checks the name. The ranks of a tensor group must all
  /// run the collective. Call while the scope is open.
  void run(std::string_view name) const { collectives->run_collective(name); }
};

/// Repeats the forward of `memory.use` and thereby restores `memory.kept`. The parameters of the use and `memory.input`
/// are accessible. `memory.output` is not null if backward reads it, unless a collective of the forward wrote it; the
/// function may rewrite it or leave it unchanged.
/// Called from backward() on the rank's thread. Must enqueue on the compute stream. An exception abandons the step.
using Recompute = std::function<void(const UseMemory& memory)>;

}  // namespace aliquot
#pragma GCC visibility pop
