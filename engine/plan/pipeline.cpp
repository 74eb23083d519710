#include "engine/plan/pipeline.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <numeric>
#include <utility>

#include "engine/plan/sizes.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// Identifies the operation of one transfer on one of its two pipeline stages.
struct TransferId {
  Verb verb;
  int32_t use, micro_batch;
  friend auto operator<=>(const TransferId&, const TransferId&) = default;
};

}  // namespace

void check_virtual_stages(const ModelSpec& model, const Policy& policy) {
  if (policy.pipeline < 1)
    throw UsageError(fmt::format("EngineOptions::pipeline is {}: expected 1 or more", policy.pipeline));
  if (policy.virtual_stages < 1)
    throw UsageError(fmt::format("EngineOptions::virtual_stages is {}: expected 0 (the default) or a positive number",
                                 policy.virtual_stages));
  if (policy.virtual_stages > 1 && policy.pipeline == 1)
    throw UsageError(
        fmt::format("EngineOptions::virtual_stages is {}: expected 1, because EngineOptions::pipeline is 1",
                    policy.virtual_stages));
  if (policy.virtual_stages > 1 && policy.pipeline_schedule != PipelineSchedule::kInterleaved &&
      policy.pass_order.empty())
    throw UsageError(
        fmt::format("EngineOptions::virtual_stages is {}: expected 1, because EngineOptions::pipeline_schedule is not "
                    "kInterleaved and EngineOptions::pass_order is empty",
                    policy.virtual_stages));
  if (policy.virtual_stages == 1 && policy.pipeline > 1 && policy.pass_order.empty() &&
      policy.pipeline_schedule == PipelineSchedule::kInterleaved)
    throw UsageError(
        "EngineOptions::virtual_stages is 1, but EngineOptions::pipeline_schedule is kInterleaved: expected 2 or more");
  const std::size_t uses = model.uses.size();
  if (policy.virtual_stages > 1 && std::cmp_less(uses, virtual_stage_count(policy)))
    throw UsageError(fmt::format(
        "EngineOptions::pipeline is {} and EngineOptions::virtual_stages is {}: expected a product of at most {}, the "
        "number of parts into which the model can be divided",
        policy.pipeline, policy.virtual_stages, uses));
  if (policy.pipeline > 1 && std::cmp_less(uses, policy.pipeline))
    throw UsageError(
        fmt::format("EngineOptions::pipeline is {}: expected at most {}, the number of parts into which the model can "
                    "be divided",
                    policy.pipeline, uses));
}

namespace {

void refuse_cut(const ModelSpec& model, const Policy& policy) {
  const auto& cut = policy.pipeline_cut;
  if (policy.pipeline == 1 && cut.empty()) return;
  for (const int count : cut) {
    if (count < 1)
      throw UsageError(
          fmt::format("EngineOptions::pipeline_cut gives a virtual stage {} uses: expected 1 or more", count));
  }
  if (policy.virtual_stages > 1 && std::cmp_not_equal(cut.size(), virtual_stage_count(policy)))
    throw UsageError(
        fmt::format("EngineOptions::pipeline_cut has {} numbers, but EngineOptions::pipeline is {}, with {} virtual "
                    "stages each: expected one number of uses for each virtual stage",
                    cut.size(), policy.pipeline, policy.virtual_stages));
  if (std::cmp_not_equal(cut.size(), virtual_stage_count(policy)))
    throw UsageError(
        fmt::format("EngineOptions::pipeline_cut has {} numbers, but EngineOptions::pipeline is {}: "
                    "expected one number of uses for each pipeline stage",
                    cut.size(), policy.pipeline));
  const int64_t uses = std::accumulate(cut.begin(), cut.end(), int64_t{0});
  if (std::cmp_not_equal(uses, model.uses.size()))
    throw UsageError(
        fmt::format("EngineOptions::pipeline_cut has {} uses in all, but the model has {}", uses, model.uses.size()));
}

template <typename Visit>
void for_each_use(const PipelineStage& stage, const Visit& visit) {
  for (const VirtualStage& run : stage.runs) {
    for (int32_t use = run.first_use; use < run.end_use; ++use) visit(use);
  }
}

/// Throws UsageError if data that pipeline stages send is not declared, because the engine can send only memory that it
/// allocates.
void refuse_undeclared_activations(const ModelSpec& model, const std::vector<PipelineStage>& stages) {
  if (model.activations.uses.empty())
    throw UsageError(
        fmt::format("EngineOptions::pipeline is {}, but the model allocates its activations itself: declare them with "
                    "Engine::declare_activations(), so that the engine can send them to the next pipeline stage",
                    stages.size()));
  if (model.activations.backward_bytes == 0)
    throw UsageError(
        fmt::format("EngineOptions::pipeline is {}, but ActivationSpec::backward_bytes is 0: declare the size of the "
                    "gradients of activations, which pipeline stages send to one another in backward",
                    stages.size()));
  for (const PipelineStage& stage : stages) {
    for (const VirtualStage& run : stage.runs) {
      const int32_t use = run.last_use();
      if (stage.is_last(run) || model.activations.uses[use].output_bytes > 0) continue;
      throw UsageError(
          fmt::format("pipeline stage {} sends the output of use {} ({}), which declares an output of 0 bytes: cut the "
                      "pipeline after another use",
                      stage.index, use, model.units[model.uses[use].front()].name));
    }
  }
}

/// Throws UsageError if two virtual stages on one pipeline stage use the same unit, unless they are tied ends. The
/// order of additions to the unit's gradients would depend on the order of passes. Tied ends have a fixed order.
void refuse_units_on_two_virtual_stages(const ModelSpec& model, const PipelineStage& stage) {
  std::vector<int32_t> run_of_unit(model.units.size(), -1);
  for (const VirtualStage& run : stage.runs) {
    const bool is_end = run.is_first() || stage.is_last(run);
    const int32_t own = stage.tied_ends && is_end ? 0 : run.index;
    for (int32_t use = run.first_use; use < run.end_use; ++use) {
      for (const UnitId unit : model.uses[use]) {
        int32_t& first = run_of_unit[unit];
        if (first < 0) first = own;
        if (first == own) continue;
        throw UsageError(
            fmt::format("unit {} is used on two virtual stages of pipeline stage {}: only the first uses of the model "
                        "may share a unit with another virtual stage, which must be the last; declare a separate unit "
                        "for each virtual stage, or cut the pipeline elsewhere",
                        model.units[unit].name, stage.index));
      }
    }
  }
}

void refuse_pass_times(const Policy& policy, const PipelineStage& stage) {
  const StagePassTimes& times = policy.pass_times;
  if (!times.empty() && std::cmp_not_equal(times.size(), stage.run_count))
    throw UsageError(fmt::format("Policy::pass_times has {} elements: expected {}, one for each virtual stage",
                                 times.size(), stage.run_count));
  for (const PassTimes& of : times) {
    const int64_t least = std::min({of.forward, of.backward, of.backward_input, of.backward_weights});
    if (least < 1) throw UsageError(fmt::format("Policy::pass_times has the time {}: expected 1 or more", least));
    const int64_t least_transfer = std::min(of.send_activations, of.send_gradients);
    if (least_transfer < 0)
      throw UsageError(
          fmt::format("Policy::pass_times has the time {} for a transfer: expected 0 or more", least_transfer));
  }
}

void refuse_units_on_two_stages(const ModelSpec& model, const std::vector<PipelineStage>& stages) {
  for (const PipelineStage& stage : stages) refuse_units_on_two_virtual_stages(model, stage);
  std::vector<int32_t> stage_of_unit(model.units.size(), -1);
  for (const PipelineStage& stage : stages) {
    for_each_use(stage, [&](int32_t use) {
      for (const UnitId unit : model.uses[use]) {
        int32_t& first = stage_of_unit[unit];
        if (first < 0) first = stage.index;
        if (first == stage.index) continue;
        throw UsageError(
            fmt::format("unit {} is used on pipeline stages {} and {}: only the first uses of the model may share a "
                        "unit with another pipeline stage, and only with the last virtual stage; declare a separate "
                        "unit for each pipeline stage, or cut the pipeline elsewhere",
                        model.units[unit].name, first, stage.index));
      }
    });
  }
}

/// Moves the tied uses to the last stage, unless the first stage would have no use left.
void move_tied_uses(const ModelSpec& model, std::vector<PipelineStage>& stages) {
  VirtualStage& first = stages.front().runs.front();
  const int32_t count = tied_uses(model, first.end_use, stages.back().runs.back().first_use);
  if (count == 0 || count == first.end_use) return;
  first.first_use = count;
  for (PipelineStage& stage : stages) {
    stage.tied_ends = true;
    ++stage.run_count;
    for (VirtualStage& run : stage.runs) ++run.index;
  }
  auto& last = stages.back().runs;
  last.insert(last.begin(), {.index = 0, .first_use = 0, .end_use = count});
}

}  // namespace

int32_t PipelineStage::use_count() const {
  int32_t uses = 0;
  for (const VirtualStage& run : runs) uses += run.end_use - run.first_use;
  return uses;
}

const VirtualStage& PipelineStage::run_of_use(int32_t use) const {
  const auto next = std::ranges::upper_bound(runs, use, {}, &VirtualStage::first_use);
  return *(next == runs.begin() ? next : next - 1);
}

const VirtualStage& PipelineStage::run(int32_t virtual_stage) const {
  return *std::ranges::find(runs, virtual_stage, &VirtualStage::index);
}

int32_t tied_uses(const ModelSpec& model, int32_t end, int32_t first_of_last) {
  std::vector<bool> is_on_last(model.units.size(), false);
  for (auto use = static_cast<std::size_t>(first_of_last); use < model.uses.size(); ++use) {
    for (const UnitId unit : model.uses[use]) is_on_last[unit] = true;
  }
  int32_t count = 0;
  while (count < end && std::ranges::any_of(model.uses[count], [&](UnitId unit) { return is_on_last[unit]; })) ++count;
  return count;
}

PassOrder pass_order_of(const Policy& policy, const PipelineStage& stage) {
  const PassOrder order = with_whole_backwards(pass_order_of(policy));
  return stage.tied_ends ? with_tied_ends(order, !accumulates_into_shard(policy), policy.pass_times) : order;
}

std::vector<StagePasses> stage_passes(const Policy& policy, const PipelineStage& stage) {
  PassOrder order = pass_order_of(policy, stage);
  std::vector<Receives> receives = receives_of(order, stage.tied_ends, policy.pass_times);
  std::vector<StagePasses> passes;
  for (std::size_t s = 0; s < order.size(); ++s) passes.push_back({std::move(order[s]), std::move(receives[s])});
  return passes;
}

std::vector<bool> units_in_several_runs(const Plan& plan) {
  std::vector<bool> several(plan.model.units.size(), false);
  if (plan.stage.runs.size() < 2) return several;
  std::vector<int32_t> run_of_unit(plan.model.units.size(), -1);
  for (const VirtualStage& run : plan.stage.runs) {
    for (int32_t use = run.first_use; use < run.end_use; ++use) {
      for (const UnitId unit : plan.model.uses[use]) {
        if (run_of_unit[unit] >= 0 && run_of_unit[unit] != run.index) several[unit] = true;
        run_of_unit[unit] = run.index;
      }
    }
  }
  return several;
}

std::vector<bool> units_with_interleaved_gradients(const Plan& plan) {
  if (plan.schedule.accumulate_into_shard) return units_in_several_runs(plan);
  return std::vector<bool>(plan.model.units.size(), false);
}

std::vector<PipelineStage> pipeline_stages(const ModelSpec& model, const Policy& policy) {
  check_virtual_stages(model, policy);
  refuse_cut(model, policy);
  const auto run_count = static_cast<int32_t>(virtual_stage_count(policy));
  std::vector<PipelineStage> stages;
  for (int32_t index = 0; index < policy.pipeline; ++index)
    stages.push_back({.index = index, .count = policy.pipeline, .run_count = run_count});
  int32_t next = 0;
  for (int32_t run = 0; run < run_count; ++run) {
    const auto uses = policy.pipeline == 1 ? static_cast<int32_t>(model.uses.size())
                                           : policy.pipeline_cut[static_cast<std::size_t>(run)];
    stages[static_cast<std::size_t>(run % policy.pipeline)].runs.push_back({run, next, next + uses});
    next += uses;
  }
  if (policy.pipeline == 1) return stages;
  move_tied_uses(model, stages);
  refuse_undeclared_activations(model, stages);
  refuse_units_on_two_stages(model, stages);
  refuse_pass_times(policy, stages.front());
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
    for (OperationId id = 0; id < static_cast<OperationId>(stage.schedule.operations.size()); ++id) {
      const Operation& operation = stage.schedule.operations[id];
      if (!is_transfer(operation.verb)) continue;
      const PlannedBuffer* buffer = buffers.of(id);
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

TransferBuffers::TransferBuffers(const Schedule& schedule) : schedule_(schedule) {
  for (const PlannedBuffer& buffer : schedule.buffers) {
    if (buffer.role == Role::kOutputActivations || buffer.role == Role::kActivationGradients)
      buffers_[{buffer.flat, buffer.micro_batch}].push_back(&buffer);
  }
}

const PlannedBuffer* TransferBuffers::of(OperationId id) const {
  const Operation& operation = schedule_.operations[id];
  const int32_t owner = transfers_activations(operation.verb) ? operation.operand : -1;
  const auto found = buffers_.find({owner, operation.micro_batch});
  if (found == buffers_.end()) return nullptr;
  const auto exists = [id](const PlannedBuffer* buffer) { return buffer->first <= id && id <= buffer->last; };
  const auto buffer = std::ranges::find_if(found->second, exists);
  return buffer == found->second.end() ? nullptr : *buffer;
}

}  // namespace aliquot
