#pragma once
// How a model is to be trained, as far as the schedule depends on it.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/formats/dtype.h"
#include "optim/optimizer.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// None; under a budget, as few as it must be.
inline constexpr int kRecomputeAsNeeded = -1;
/// All that can be.
inline constexpr int kRecomputeAll = std::numeric_limits<int>::max();
/// How programs call those two, and 0: "auto", "block", "none". Nothing for another word.
std::optional<int> recompute_count(std::string_view word);

enum class GatherMode : uint8_t { kAuto, kView, kCopy };
enum class AccumulateInto : uint8_t { kAuto, kFull, kShard };

/// Where what is offloaded lies between its uses: in host memory, or in a file.
enum class Offload : uint8_t { kNone, kHost, kDisk };

/// How the fp32 master is kept beside a 16-bit working copy: as the copy's missing 16 bits, or whole. The same bits either
/// way.
enum class MasterForm : uint8_t { kSplit, kWhole };

/// What is kept in which type. The master is fp32, always; where the model computes in fp32, it reads the master itself.
struct Precision {
  DType compute = DType::kFloat32;         // what the model reads: fp32, bf16 or fp16
  DType gradients = DType::kFloat32;       // what it writes, and what sums are kept in: fp32 or bf16
  std::optional<DType> reduce = {};        // what ranks send of them; unset: as gradients. Added in fp32 either way
  MasterForm master = MasterForm::kSplit;  // beside bf16; fp16 has no half to split, its master is whole

  DType sent() const { return reduce.value_or(gradients); }
  bool has_master() const { return compute != DType::kFloat32; }
  bool split() const { return compute == DType::kBFloat16 && master == MasterForm::kSplit; }
  /// Bytes a parameter that the master needs beside the working copy.
  int64_t master_bytes() const { return !has_master() ? 0 : split() ? 2 : 4; }
  /// "bf16, gradients fp32 sent in bf16, split master".
  std::string describe() const;
};

/// Of an optimizer that works on whole matrices (Muon): what it keeps for 256 elements of one, and how long it works.
struct MatrixUpdates {
  int64_t state_bytes_per_block = 4 * kBlockElements;
  int iterations = 5;
};

struct Policy {
  int zero_stage = 3;
  int replica_count = 1;  // groups of contiguous ranks that each hold one whole model, sharded over themselves
  Precision precision = {};
  int micro_batch_count = 1;                               // gradients are accumulated over them
  AccumulateInto accumulate_into = AccumulateInto::kAuto;  // auto: full at stages 0 and 1, shard at 2 and 3
  int prefetch = 1;                                        // uses ahead of compute that units are gathered
  int keep_gathered = 0;                                   // last uses of forward whose units stay whole for backward
  // Of the uses that can be: how many, from the first on, run forward again before their backward.
  int recompute = kRecomputeAsNeeded;
  GatherMode gather = GatherMode::kAuto;
  Offload offload_state = Offload::kNone;       // the optimizer's state, masters included
  Offload offload_parameters = Offload::kNone;  // stage 3: the shards
  bool update_in_backward = false;  // a unit as soon as its gradient is reduced: no clipping, nothing can be skipped
  bool reproducible = false;        // micro-batches and ranks are leaves of one tree: the same bits on any world
  bool quantize_weights = false;    // stage 3: units are gathered in 8 bits, which cross between nodes once a step
  bool quantize_gradients = false;  // what a node adds up of its ranks, or a replica, goes to others in 8 bits
  int64_t state_bytes_per_block = 2 * 4 * kBlockElements;  // of the optimizer, for 256 elements; Adam's in fp32
  std::optional<MatrixUpdates> matrix_updates = {};        // unset: every element is updated for itself
  bool check = false;       // red zones around what the model sees, and no page that holds two buffers
  bool evaluation = false;  // forward alone, over what a training engine keeps: see evaluation_of()
};

/// Whether micro-batches are summed in the shards rather than where backward writes, when there are several.
bool accumulates_into_shard(const Policy& policy);

/// Lets the policy be of that optimizer's state.
void apply_optimizer(Policy& policy, const Optimizer& optimizer, DType moments);

}  // namespace aliquot
#pragma GCC visibility pop
