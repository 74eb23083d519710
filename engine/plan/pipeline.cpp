#include "engine/plan/pipeline.h"

#include <fmt/format.h>
#include <map>
#include <numeric>
#include <utility>

#include "engine/plan/sizes.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// The operation of one transfer on one of its two stages.
struct TransferId {
  Verb verb;
  int32_t use, micro_batch;
  friend auto operator<=>(const TransferId&, const TransferId&) = default;
};

void refuse_cut(const ModelSpec& model, const Policy& policy) {
  if (policy.pipeline < 1)
    throw UsageError(fmt::format("EngineOptions::pipeline is {}: expected 1 or more", policy.pipeline));
  const auto& cut = policy.pipeline_cut;
  if (policy.pipeline == 1 && cut.empty()) return;
  for (const int count : cut) {
    if (count < 1)
      throw UsageError(
          fmt::format("EngineOptions::pipeline_cut gives a pipeline stage {} uses: expected 1 or more", count));
  }
  if (std::cmp_not_equal(cut.size(), policy.pipeline))
    throw UsageError(
        fmt::format("EngineOptions::pipeline_cut has {} numbers, but EngineOptions::pipeline is {}: "
                    "expected one number of uses for each pipeline stage",
                    cut.size(), policy.pipeline));
  const int64_t uses = std::accumulate(cut.begin(), cut.end(), int64_t{0});
  if (std::cmp_not_equal(uses, model.uses.size()))
    throw UsageError(
        fmt::format("EngineOptions::pipeline_cut has {} uses in all, but the model has {}", uses, model.uses.size()));
}

/// The engine sends only activations that it allocates.
void refuse_undeclared_activations(const ModelSpec& model, const std::vector<PipelineStage>& stages) {
  if (model.activations.uses.empty())
    throw UsageError(
        fmt::format("EngineOptions::pipeline is {}, but the model allocates its activations itself: declare them with "
                    "Engine::declare_activations(), so that the engine can send them to the next pipeline stage",
                    stages.size()));
  if (model.activations.backward_bytes == 0)
    throw UsageError(
        fmt::format("EngineOptions::pipeline is {}, but ActivationSpec::backward_bytes is 0: declare the memory in "
                    "which a backward pass passes gradients from use to use, because stages send it",
                    stages.size()));
  for (const PipelineStage& stage : stages) {
    if (stage.is_last() || model.activations.uses[stage.last_use()].output_bytes > 0) continue;
    throw UsageError(
        fmt::format("pipeline stage {} ends with use {} ({}), which declares an output of 0 bytes: cut the pipeline "
                    "after another use",
                    stage.index, stage.last_use(), model.units[model.uses[stage.last_use()].front()].name));
  }
}

void refuse_units_on_two_stages(const ModelSpec& model, const std::vector<PipelineStage>& stages) {
  std::vector<int32_t> stage_of_unit(model.units.size(), -1);
  for (const PipelineStage& stage : stages) {
    for (int32_t use = stage.first_use; use < stage.end_use; ++use) {
      for (const UnitId unit : model.uses[use]) {
        int32_t& first = stage_of_unit[unit];
        if (first < 0) first = stage.index;
        if (first == stage.index) continue;
        throw UsageError(
            fmt::format("unit {} is used on pipeline stages {} and {}, which is not supported yet: declare a unit of "
                        "its own for each, or cut the pipeline elsewhere",
                        model.units[unit].name, first, stage.index));
      }
    }
  }
}

}  // namespace

std::vector<PipelineStage> pipeline_stages(const ModelSpec& model, const Policy& policy) {
  refuse_cut(model, policy);
  std::vector<PipelineStage> stages;
  int32_t next = 0;
  for (int32_t index = 0; index < policy.pipeline; ++index) {
    const auto uses = policy.pipeline == 1 ? static_cast<int32_t>(model.uses.size())
                                           : policy.pipeline_cut[static_cast<std::size_t>(index)];
    stages.push_back({.index = index, .count = policy.pipeline, .first_use = next, .end_use = next + uses});
    next += uses;
  }
  if (policy.pipeline == 1) return stages;
  refuse_undeclared_activations(model, stages);
  refuse_units_on_two_stages(model, stages);
  return stages;
}

int64_t transfer_bytes(const ModelSpec& model, const Operation& operation) {
  const bool activations = transfers_activations(operation.verb);
  return activations ? declared_bytes(model, Role::kOutputActivations, operation.operand)
                     : model.activations.backward_bytes;
}

void link_stages(std::vector<Plan>& stages) {
  if (stages.size() == 1) return;
  std::map<TransferId, int64_t> offsets;
  for (const Plan& stage : stages) {
    const TransferBuffers buffers(stage.schedule);
    for (const Operation& operation : stage.schedule.operations) {
      if (!is_transfer(operation.verb)) continue;
      const PlannedBuffer* buffer = buffers.of(operation);
      offsets[{operation.verb, operation.operand, operation.micro_batch}] =
          buffer != nullptr ? buffer->offset_bytes : -1;
    }
  }
  for (Plan& stage : stages) {
    for (Operation& operation : stage.schedule.operations) {
      if (!is_transfer(operation.verb)) continue;
      const auto found = offsets.find({counterpart(operation.verb), operation.operand, operation.micro_batch});
      if (found != offsets.end()) operation.peer_offset_bytes = found->second;
    }
  }
}

TransferBuffers::TransferBuffers(const Schedule& schedule) {
  for (const PlannedBuffer& buffer : schedule.buffers) {
    if (buffer.role == Role::kOutputActivations || buffer.role == Role::kActivationGradients)
      buffers_[{buffer.flat, buffer.micro_batch}] = &buffer;
  }
}

const PlannedBuffer* TransferBuffers::of(const Operation& operation) const {
  const int32_t owner = transfers_activations(operation.verb) ? operation.operand : -1;
  const auto found = buffers_.find({owner, operation.micro_batch});
  return found == buffers_.end() ? nullptr : found->second;
}

}  // namespace aliquot
