#pragma once
// Options of the engine and of parameters, and the report of a step.

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "engine/cost/simulate.h"
#include "engine/plan/model_spec.h"
#include "engine/plan/policy.h"
#include "optim/loss_scaler.h"
#include "optim/optimizer.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Whether Engine::run_passes() captures the passes of a step. kAuto: if the world has one rank and nothing prevents a
/// capture. kOn: always, and otherwise materialize() throws. Graphs over NCCL need kOn.
enum class GraphMode : uint8_t { kAuto, kOn, kOff };

struct EngineOptions {
  int zero_stage = 3;
  int replicas = 1;  // number of shard groups; each has contiguous ranks and holds one copy of the model
  Precision precision = {};
  int accumulate = 1;  // micro-batches per step
  int tensor = 1;      // number of ranks in a tensor group: contiguous ranks that read the same samples
  int pipeline = 1;    // number of pipeline stages; each has contiguous ranks and runs a part of the uses
  PipelineSchedule pipeline_schedule = PipelineSchedule::k1F1B;
  int virtual_stages = 0;              // virtual stages per pipeline stage; 0: 2 with kInterleaved, otherwise 1
  std::vector<int> pipeline_cut = {};  // number of consecutive uses of each virtual stage; empty: see cut_pipeline()
  PassOrder pass_order = {};  // if not empty, replaces `pipeline_schedule`; one list of passes per pipeline stage
  AccumulateInto accumulate_into = AccumulateInto::kAuto;
  int prefetch = 1;                 // number of uses whose units are gathered ahead of compute
  int keep_gathered = 0;            // number of uses at the end of forward whose units stay gathered for backward
  int gather_for = kGatherForAuto;  // number of micro-batches that use one gather; also kGatherForPass, kGatherForStep
  /// Number of recomputed uses of each pipeline stage, which are its first recomputable ones.
  int recompute = kRecomputeAsNeeded;
  GatherMode gather = GatherMode::kAuto;
  Offload offload_state = Offload::kNone;       // where optimizer state and masters are stored between updates
  std::string offload_state_to = {};            // directory for Offload::kDisk; ranks may share it
  Offload offload_parameters = Offload::kNone;  // ZeRO stage 3: where shards are stored while no operation uses them
  std::string offload_parameters_to = {};       // directory for Offload::kDisk; ranks may share it
  bool update_in_backward = false;              // update a unit as soon as its gradient is reduced; requires clip 0
  bool reproducible = false;                    // same bits on many meshes: see docs/engine.md, "Reproducible sums"
  bool quantize_weights = false;    // ZeRO stage 3: gather weights in 8 bits, between nodes only once per step
  bool quantize_gradients = false;  // send sums of gradients between nodes as 8-bit values
  int64_t memory_budget_bytes = 0;  // budget per rank for engine memory; 0: none. See plan_within()
  /// Memory that the caller needs between steps, such as kStagingBytes for save() and load(). The plan and a budget
  /// include it, and the engine uses the same memory for its own staging between steps.
  int64_t between_steps_bytes = 0;
  CostModel cost = CostModel::typical_host();  // machine rates for the choice of a plan within memory_budget_bytes
  Optimizer optimizer = AdamW{};
  DType moments = DType::kFloat32;  // type of the optimizer's moments: fp32, or bf16 with stochastic rounding
  double clip = 1.0;                // maximum global gradient norm; 0: no clipping
  LossScaling loss_scaling = {};    // used if precision.compute is fp16
  uint64_t seed = 1;                // for stochastic rounding
  int max_skipped = 0;              // step() throws after this many skipped steps in a row; 0: never
  bool tell_skipped = true;         // rank 0 logs each skipped step and the reason
  /// Finds bits of parameters, masters and optimizer state that change between two updates: every update compares
  /// digests before it changes a block, and throws FaultError if they differ. On GPUs, the next step() or a call
  /// between steps throws it. Results do not change.
  bool check_state = false;
  /// Finds ranks that compute wrong gradients or wrong sums of them: every so many steps, before the update, each data
  /// coordinate repeats micro-batch 0 of the next one, and each rank repeats sums over ranks that two others compute.
  /// Digests of the results are compared. See docs/reliability.md. Requires Engine::next() and Work::data_coordinate.
  /// 0: never; kReplayAuto: so often that it takes at most 2 % of the time. Results do not change, except that NCCL
  /// then adds in tree order.
  int replay_every = 0;
  /// Whether a GPU repeats the passes of a step as a CUDA graph: see Engine::run_passes(). Results do not change.
  GraphMode graph = GraphMode::kAuto;
  /// Checking mode (docs/wrapping.md): puts red zones around parameters and activations. On hosts, memory also faults
  /// when it is used outside of its scope. ALIQUOT_CHECK=1 in the environment has the same effect. Results do not
  /// change. The checking mode costs time, and memory that the plan includes.
  bool check = false;
};

struct ParameterOptions {
  bool trainable = true;
  bool decayed = true;
  float lr_scale = 1.0f;     // multiplies the learning rate
  float decay_scale = 1.0f;  // multiplies the weight decay, if `decayed`
  /// Whether Muon orthogonalizes the parameter if it has two dimensions. Set false for embeddings and the last layer.
  bool matrix = true;
  /// How the ranks of a tensor group (EngineOptions::tensor) divide the parameter. The pointers of the model then lead
  /// to this rank's slice.
  Split split = {};
  /// For a parameter that is not split: true if each rank of a tensor group computes a part of the gradient, which the
  /// engine adds. False if each rank computes the full gradient, with the same bits. If this is wrongly false,
  /// Engine::check_copies() finds copies that differ.
  bool partial_gradient = false;
};

struct StepReport {
  int64_t step = 0;          // index of the step, from 1; skipped steps are counted
  double gradient_norm = 0;  // norm of the mean gradient over ranks and micro-batches, before clipping
  double learning_rate = 0;
  double loss_scale = 1;         // the scale that this step used
  bool skipped = false;          // no update: a gradient was not finite, or a rank abandoned the step
  std::string first_not_finite;  // first parameter in name order whose gradient was not finite; empty: none
  int abandoned_by = -1;         // lowest rank that abandoned the step; -1: none
  /// With check_state, the time that this rank's threads spent on digests since the last report, summed over threads.
  /// 0 on GPUs.
  double state_check_seconds = 0;
  /// With replay_every, the time of the replay and, on hosts, of repeated sums in this step, on this rank. 0 in steps
  /// without one.
  double replay_seconds = 0;
  /// Whether a gradient that this rank computed was not finite, before gradients were summed over ranks. Checked only
  /// in the step after a step with a gradient that was not finite.
  bool own_not_finite = false;
};

/// Fills `values` with the initial values of elements [offset, offset + values.size()) of the parameter. The engine
/// calls it for the elements that this rank stores. The value of an element must be the same on every rank.
using Initialize = std::function<void(const ParameterSpec& parameter, int64_t offset, std::span<float> values)>;

}  // namespace aliquot
#pragma GCC visibility pop
