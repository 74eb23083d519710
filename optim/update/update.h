#pragma once
// The optimizer update of one shard, in one pass that reads and writes each array once.

#include <cstdint>

#include "kernels/device/device.h"
#include "kernels/device/stream.h"
#include "kernels/formats/dtype.h"
#include "optim/rule.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Consecutive elements of one parameter in a shard. The update does not read or write padding and frozen parameters,
/// which are between segments.
struct Segment {
  int64_t offset;  // index in the shard; a multiple of kBlockElements
  int64_t count;   // number of elements; only a parameter's last segment may end within a block
  /// A multiple of kBlockElements that selects random numbers: the index in the full parameter. For a slice of a
  /// parameter, any number such that the ranges of different slices do not overlap.
  int64_t global_offset;
  int32_t parameter;  // index in the order of parameter names, the same for every world and ZeRO stage
  float lr_scale = 1.0f;
  float decay_scale = 1.0f;  // 0 disables weight decay
};

/// The fp32 weights: an fp32 master with an optional working copy, or a split master, whose high half is the bf16
/// working copy. Both kinds of master give the same bits. Copies are rounded to nearest, with ties away from zero in
/// bf16 and ties to even in fp16.
struct Master {
  float* whole = nullptr;  // the fp32 master; null for a split master
  void* copy = nullptr;    // written, never read; null if there is no working copy
  DType copy_dtype = DType::kBFloat16;

  uint16_t* high = nullptr;  // the split master
  int16_t* low = nullptr;
};

struct StateCheck;

/// The arrays of an update, including the segments. They are in memory of the stream's device. Arrays must not overlap
/// and must be aligned to their elements. The update is fastest if they are aligned to 64 bytes.
struct UpdateArgs {
  const void* gradient = nullptr;  // fp32 or bf16
  DType gradient_dtype = DType::kFloat32;
  Master master;
  void* states[kMaxStates] = {};  // in the order of state_specs()
  // moment_dtype(): fp32, bf16 with stochastic rounding, or uint8 for codes and scales
  DType moments = DType::kFloat32;
  Rounding rounding = Rounding::kNearest;  // how 8-bit codes are rounded
  const Segment* segments = nullptr;       // in ascending order of offset, not overlapping
  int64_t segment_count = 0;
  int64_t count = 0;  // number of elements of the shard; no segment ends beyond the shard
  // The digests of the arrays (optim/update/state_digests.h). This object is in host memory on GPUs too. Null: none.
  const StateCheck* check = nullptr;
};

/// Returns the offset in bytes, within state tensor `state`, of the value for element `offset` of the shard. `offset`
/// is a multiple of kBlockElements.
int64_t state_offset_bytes(DType moments, int state, int64_t offset);

/// The arguments of an update that change from step to step.
struct UpdateStep {
  Rule rule;                     // the result of rule_at()
  float gradient_factor = 1.0f;  // the result of gradient_factor() of optim/clip.h, for unscaling and clipping
  uint64_t seed = 0;             // with step, parameter and element, selects the random numbers for rounding
  int64_t step = 0;              // the step given to rule_at()
  int64_t reported_step = 0;     // the step that messages name; it also counts skipped steps
};

struct UpdateKernels {
  /// Enqueues one update. If gradient_factor is not finite, it changes nothing and only compares digests, if
  /// args.check is set. The arrays must stay valid and unchanged until the work has run. So must `args`, on hosts; a
  /// GPU copies it. `step` is copied. Allocates nothing. Every division into shards and segments, every device and
  /// every instruction set gives the same bits.
  void (*update)(Stream&, const UpdateArgs& args, const UpdateStep& step);
  /// Enqueues only the comparison of digests.
  void (*compare)(Stream&, const UpdateArgs& args, int64_t reported_step);
  /// Enqueues only the computation of digests.
  void (*record)(Stream&, const UpdateArgs& args);
};

/// Returns the update for streams of this kind of device. Throws UnavailableError for kCuda in a build without CUDA.
const UpdateKernels& update_kernels(DeviceKind kind);

}  // namespace aliquot
#pragma GCC visibility pop
