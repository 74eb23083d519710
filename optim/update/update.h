#pragma once
// The optimizer step over one flat shard: one pass that reads every stream once and writes it once.

#include <cstdint>

#include "kernels/device/device.h"
#include "kernels/device/stream.h"
#include "kernels/formats/dtype.h"
#include "optim/rule.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// A run of elements of one parameter. Between segments lie padding and what is not trained; neither is read or
/// written.
struct Segment {
  int64_t offset;         // in the shard, elements; a multiple of kBlockElements
  int64_t count;          // elements; only a parameter's last segment may end within a block
  int64_t global_offset;  // in the whole parameter; a multiple of kBlockElements. Keys random numbers
  int32_t parameter;      // the same for every world and stage: the parameter's number in order of names
  float lr_scale = 1.0f;
  float decay_scale = 1.0f;  // 0: not decayed
};

/// Where the fp32 weights are, in one of two ways that give the same bits: whole, with a working copy or none; or
/// split, the bf16 working copy being the high half. A bf16 copy is rounded half up in magnitude either way, an fp16
/// copy to the nearest, ties to even.
struct Master {
  float* whole = nullptr;
  void* copy = nullptr;  // only written; null: none
  DType copy_dtype = DType::kBFloat16;

  uint16_t* high = nullptr;  // split, when `whole` is null
  int16_t* low = nullptr;
};

/// Where everything lies, in memory of the stream's device; on CUDA the segments too. Streams do not overlap. Aligned
/// to their elements; at full speed where they start on 64 bytes.
struct UpdateArgs {
  const void* gradient = nullptr;  // fp32 or bf16
  DType gradient_dtype = DType::kFloat32;
  Master master;
  void* states[kMaxStates] = {};    // in the order of state_specs()
  DType moments = DType::kFloat32;  // moment_dtype(): fp32, bf16 rounded stochastically, or uint8, codes and scales
  Rounding rounding = Rounding::kNearest;  // of codes
  const Segment* segments = nullptr;       // in order of offset, not overlapping
  int64_t segment_count = 0;
  int64_t count = 0;  // elements of the shard: no segment ends beyond it
};

/// Bytes from the start of state tensor `state` to what it holds for the shard's element `offset`, a multiple of
/// kBlockElements.
int64_t state_offset_bytes(DType moments, int state, int64_t offset);

/// What differs from step to step.
struct UpdateStep {
  Rule rule;                     // rule_at()
  float gradient_factor = 1.0f;  // gradient_factor() of optim/clip.h: unscales and clips, multiplied in once
  uint64_t seed = 0;             // with `step`, parameter and global element: the key of stochastic rounding
  int64_t step = 0;              // as given to rule_at()
};

struct UpdateKernels {
  /// Enqueues one step. A gradient_factor that is not finite skips it: nothing is read or written. `args` and all it
  /// points at must stay alive and unchanged until the work has run; `step` is copied. Nothing allocates.
  /// Cut at any block edge into any segments, on any device and instruction set, it gives the same bits.
  void (*update)(Stream&, const UpdateArgs& args, const UpdateStep& step);
};

/// The loops for streams of that kind of device. Throws UnavailableError in a build without CUDA.
const UpdateKernels& update_kernels(DeviceKind kind);

}  // namespace aliquot
#pragma GCC visibility pop
