#pragma once
// What a user chooses, and what a step reports.

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

struct EngineOptions {
  int zero_stage = 3;
  int replicas = 1;  // groups of contiguous ranks that each hold one whole model
  Precision precision = {};
  int accumulate = 1;  // micro-batches a step
  AccumulateInto accumulate_into = AccumulateInto::kAuto;
  int prefetch = 1;
  int keep_gathered = 0;
  int recompute =
      kRecomputeAsNeeded;  // uses, from the first on, that run forward again before backward and keep nothing
  GatherMode gather = GatherMode::kAuto;
  Offload offload_state = Offload::kNone;       // where the optimizer's state, masters included, lies between updates
  std::string offload_state_to = {};            // for disk: a directory, of each rank's own or shared
  Offload offload_parameters = Offload::kNone;  // where the shards of stage 3 lie between gathers and updates
  std::string offload_parameters_to = {};
  bool update_in_backward = false;             // needs clip 0
  bool reproducible = false;                   // the same bits on any power of two of ranks, for one global batch
  bool quantize_weights = false;               // stage 3: gathers in 8 bits, which cross between nodes once a step
  bool quantize_gradients = false;             // sums of a node's ranks go to other nodes in 8 bits
  int64_t memory_budget_bytes = 0;             // of each rank, for what the engine keeps; 0: none. See plan_within()
  CostModel cost = CostModel::typical_host();  // of the machine, to choose by
  Optimizer optimizer = AdamW{};
  DType moments = DType::kFloat32;  // or bf16, rounded stochastically
  double clip = 1.0;                // by the global norm; 0: off
  LossScaling loss_scaling = {};    // for fp16
  uint64_t seed = 1;                // of stochastic rounding
  int max_skipped = 0;              // step() throws when so many in a row were skipped; 0: it never does
  bool tell_skipped = true;         // the first rank tells the log sink of each skipped step, and why
  /// The checking mode (docs/wrapping.md): red zones between parameters and around activations, and on hosts memory that
  /// faults when it is used out of turn. The environment's ALIQUOT_CHECK=1 turns it on too. Changes no result; costs time and
  /// memory, which is in the plan.
  bool check = false;
};

struct ParameterOptions {
  bool trainable = true;
  bool decayed = true;
  float lr_scale = 1.0f;     // of the optimizer's rate
  float decay_scale = 1.0f;  // of its weight decay, if decayed
  bool matrix = true;        // Muon takes it whole if it has two dimensions; false: not (embeddings, the last layer)
};

struct StepReport {
  int64_t step = 0;          // from 1, skipped ones counted
  double gradient_norm = 0;  // before clipping, of the mean over ranks and micro-batches
  double learning_rate = 0;
  double loss_scale = 1;         // of this step; the next one's may differ
  bool skipped = false;          // nothing was changed: a gradient was not finite, or a rank abandoned the step
  std::string first_not_finite;  // the first parameter, by name, whose gradient was not finite
  int abandoned_by = -1;         // the first rank that abandoned the step, if one did
  /// This rank's own gradients were not, before ranks added them up. Looked at on hosts, in a step after one that was not finite.
  bool own_not_finite = false;
};

/// Fills `values` with the initial values of elements [offset, offset + values.size()) of the parameter. Called for the
/// parts that this rank holds; must give the same value for an element on every rank.
using Initialize = std::function<void(const ParameterSpec& parameter, int64_t offset, std::span<float> values)>;

}  // namespace aliquot
#pragma GCC visibility pop
