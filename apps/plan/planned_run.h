#pragma once
// Plans and simulates a run from the options of `aliquot plan`.

#include <optional>
#include <vector>

#include "apps/plan/machine.h"
#include "apps/plan/plan_text.h"
#include "engine/choose/pipeline_schedule.h"

namespace aliquot {

// The functions below require options that resolve_precision() has completed.

/// Returns the model of a run, with its activations on the machine. Without `keeps_logits`, backward computes the
/// logits again. Throws UsageError if --params is combined with an option that needs the layers of a model.
ModelSpec model_of(const PlanOptions& options, const Machine& machine, bool keeps_logits = true);

/// Returns the rates of the machine and the times of the uses of the model, from --profile if it is given.
CostModel cost_of(const PlanOptions& options, const Machine& machine);

/// The memory of a rank: --memory-budget, else --device-memory, else that of --machine, else that of this machine.
std::optional<RankMemoryLimit> memory_limit(const PlanOptions& options, const Machine& machine);

/// Returns the model as a run with this policy declares it: if micro-batches accumulate in the full gradients, backward
/// adds to the gradients of all units.
ModelSpec with_added_gradients(ModelSpec model, const Policy& policy);

/// Plans all pipeline stages of with_added_gradients() as `aliquot train` does.
std::vector<Plan> plans_of(const MemoryLimit& limit, ModelSpec model, const Policy& policy, const Topology& topology,
                           const CostModel& cost);

/// Returns the bytes that the first node sends to other nodes in a step, for all pipeline stages with ranks on it.
int64_t crossing_bytes_of_first_node(const std::vector<Plan>& stages, const std::vector<Timeline>& timelines);

/// Plans a run at one ZeRO stage, and simulates a step. If no plan meets --memory-budget, plans without a limit, and
/// sets PlannedRun::refusal.
PlannedRun plan_run(const PlanOptions& options, const Machine& machine, int zero_stage);

}  // namespace aliquot
