#pragma once
// The training options that the schedule depends on.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "engine/plan/pass_order.h"
#include "kernels/formats/dtype.h"
#include "optim/optimizer.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Recompute no use, or, with a memory budget, the smallest number that meets the budget.
inline constexpr int kRecomputeAsNeeded = -1;
/// Recompute all uses that are declared recomputable.
inline constexpr int kRecomputeAll = std::numeric_limits<int>::max();
/// How long units stay gathered at ZeRO stage 3, as a number of micro-batches. kGatherForAuto: kGatherForPass, or, with
/// a memory budget, the fastest choice that meets the budget.
inline constexpr int kGatherForAuto = -1;
inline constexpr int kGatherForPass = 0;                                // each pass gathers its units
inline constexpr int kGatherForStep = std::numeric_limits<int>::max();  // each unit is gathered once per step

/// Parses "auto" (kRecomputeAsNeeded), "block" (kRecomputeAll) and "none" (0). Returns nullopt for other words.
std::optional<int> recompute_count(std::string_view word);

/// Every so many steps, so that replays take at most kReplayShare of the time in simulation; see choose_plans().
inline constexpr int kReplayAuto = -1;
inline constexpr double kReplayShare = 0.02;

enum class GatherMode : uint8_t { kAuto, kView, kCopy };
enum class AccumulateInto : uint8_t { kAuto, kFull, kShard };

/// Where offloaded data is stored while it is not in use: in host memory, or in a file.
enum class Offload : uint8_t { kNone, kHost, kDisk };

/// How the fp32 master is stored in addition to a 16-bit working copy. kSplit stores only the 16 bits that the copy
/// lacks, kFp32 stores all 32 bits. Results are bitwise identical.
enum class MasterForm : uint8_t { kSplit, kFp32, kWhole [[deprecated("use kFp32")]] = kFp32 };

/// The element types. The master is always fp32, and gradients of ranks are added in fp32. A model that computes in
/// fp32 reads the master directly.
struct Precision {
  DType compute = DType::kFloat32;         // parameters that the model reads: fp32, bf16 or fp16
  DType gradients = DType::kFloat32;       // gradients that the model writes, and their sums: fp32 or bf16
  std::optional<DType> reduce = {};        // gradients sent between ranks; unset: same as `gradients`
  MasterForm master = MasterForm::kSplit;  // applies to bf16; the master of fp16 is always kFp32

  DType sent() const { return reduce.value_or(gradients); }
  bool has_master() const { return compute != DType::kFloat32; }
  bool split() const { return compute == DType::kBFloat16 && master == MasterForm::kSplit; }
  /// Bytes per element that the master needs in addition to the working copy.
  int64_t master_bytes() const { return !has_master() ? 0 : split() ? 2 : 4; }
  /// Returns text such as "bfloat16, gradients float32 sent in bfloat16, split master".
  std::string describe() const;

  friend bool operator==(const Precision&, const Precision&) = default;
};

/// Costs of an optimizer that updates whole matrices (Muon): bytes of state per 256 elements, and iterations per
/// update.
struct MatrixUpdates {
  int64_t state_bytes_per_block = 4 * kBlockElements;
  int iterations = 5;

  friend bool operator==(const MatrixUpdates&, const MatrixUpdates&) = default;
};

struct Policy {
  int zero_stage = 3;
  int replica_count = 1;  // number of shard groups; each has contiguous ranks and shards one copy of the model
  Precision precision = {};
  int micro_batch_count = 1;  // number of micro-batches per step
  int tensor = 1;             // number of ranks in a tensor group; they have consecutive numbers
  int pipeline = 1;           // number of pipeline stages
  PipelineSchedule pipeline_schedule = PipelineSchedule::k1F1B;
  /// Number of virtual stages of each pipeline stage; several need kInterleaved or a pass order.
  int virtual_stages = 1;
  std::vector<int> pipeline_cut = {};  // number of consecutive uses per stage; required with several pipeline stages
  PassOrder pass_order = {};           // replaces the order of `pipeline_schedule` if not empty
  /// How long passes take, for the places of receives; see pass_times_of(). Empty: the default times.
  StagePassTimes pass_times = {};
  AccumulateInto accumulate_into = AccumulateInto::kAuto;  // kAuto: see accumulates_into_shard()
  int prefetch = 1;                                        // number of uses whose units are gathered ahead of compute
  int keep_gathered = 0;            // number of uses at the end of forward whose units stay gathered for backward
  int gather_for = kGatherForAuto;  // number of micro-batches whose forward and backward passes use one gather
  /// Number of recomputed uses of each pipeline stage, which are its first recomputable ones.
  int recompute = kRecomputeAsNeeded;
  /// Replaces `recompute`, with one number per pipeline stage; empty: no effect.
  std::vector<int> recompute_by_stage = {};
  GatherMode gather = GatherMode::kAuto;
  Offload offload_state = Offload::kNone;       // where optimizer state and masters are stored between updates
  Offload offload_parameters = Offload::kNone;  // ZeRO stage 3: where shards are stored while no operation uses them
  bool update_in_backward = false;              // update a unit right after its reduce, without clipping or skipping
  bool reproducible = false;                    // sum micro-batches and ranks as leaves of one binary tree
  bool quantize_weights = false;                // ZeRO stage 3: gather units in 8 bits
  bool quantize_gradients = false;              // send partial sums of gradients to other nodes or replicas in 8 bits
  /// Bytes of optimizer state per 256 elements. The default is that of Adam in fp32.
  int64_t state_bytes_per_block = 2 * 4 * kBlockElements;
  std::optional<MatrixUpdates> matrix_updates = {};  // set: the optimizer updates whole matrices (Muon)
  int64_t between_steps_bytes = 0;                   // minimum of Schedule::stream_bytes
  /// Each update compares digests of the parameters and of the optimizer state: see docs/reliability.md.
  bool check_state = false;
  /// 0: no replays. Otherwise, every so many steps, each data coordinate repeats micro-batch 0 of the next one (see
  /// replay_of()), and ranks repeat sums of other ranks (RepeatedSums). kReplayAuto: choose_plans() sets the number.
  int replay_every = 0;
  bool check = false;       // checking mode: red zones around tensors, and each buffer on its own pages
  bool evaluation = false;  // forward only, with the memory of a training plan: see evaluation_of()
  bool replay = false;      // forward and backward of one micro-batch, without updates: see replay_of()

  /// Whether a step of the plan reduces gradients and updates parameters.
  bool updates() const { return !evaluation && !replay; }
  /// Whether the plan computes digests of the gradients of micro-batch 0.
  bool digests_gradients() const { return replay_every != 0 && !evaluation; }

  friend bool operator==(const Policy&, const Policy&) = default;
};

/// The number of virtual stages of the whole pipeline, without the additional one of tied ends.
inline int64_t virtual_stage_count(const Policy& policy) { return int64_t{policy.pipeline} * policy.virtual_stages; }

/// Whether several micro-batches are summed in the shards, after each reduce. Otherwise they are summed in the full
/// gradients, before the reduce.
bool accumulates_into_shard(const Policy& policy);

/// The order of passes of all pipeline stages. With one stage and 1F1B, each micro-batch runs forward, then backward.
/// An evaluation runs one forward pass.
PassOrder pass_order_of(const Policy& policy);

/// Sets the sizes of the optimizer state in `policy`. `moments`: the type in which the optimizer stores its moments.
void apply_optimizer(Policy& policy, const Optimizer& optimizer, DType moments);

}  // namespace aliquot
#pragma GCC visibility pop
