#include "engine/plan/use_collectives.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <numeric>

#include "kernels/system/error.h"
#include "sharding/comm/reduce_staging.h"
#include "sharding/groups.h"

namespace aliquot {
namespace {

constexpr std::array<std::string_view, 4> kBufferNames = {"output", "kept", "scratch", "backward"};

std::string_view name(UseBuffer buffer) { return kBufferNames[static_cast<std::size_t>(buffer)]; }

bool is_floating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

bool runs(const UseCollective& collective, Verb verb) {
  switch (verb) {
    case Verb::kForward: return collective.part == UsePart::kForward;
    case Verb::kRecompute:
      return collective.part == UsePart::kForward && collective.buffer != UseBuffer::kOutput && collective.in_recompute;
    case Verb::kBackward: return collective.part != UsePart::kForward;
    case Verb::kBackwardInput: return collective.part == UsePart::kBackward;
    case Verb::kBackwardWeights: return collective.part == UsePart::kBackwardWeights;
    default: return false;
  }
}

/// Whether the part of the use may write to the buffer, in all schedules.
bool may_be_in(UseBuffer buffer, UsePart part) {
  switch (buffer) {
    case UseBuffer::kOutput:
    case UseBuffer::kSaved: return part == UsePart::kForward;
    case UseBuffer::kBackward: return part == UsePart::kBackward;
    case UseBuffer::kScratch: return true;
  }
  return false;
}

int64_t declared_bytes(const ModelSpec& model, int32_t use, UseBuffer buffer) {
  const UseActivations& of = model.activations.uses[use];
  switch (buffer) {
    case UseBuffer::kOutput: return of.output_bytes;
    case UseBuffer::kSaved: return of.kept_bytes;
    case UseBuffer::kScratch: return of.scratch_bytes;
    case UseBuffer::kBackward: return model.activations.backward_bytes;
  }
  return 0;
}

/// Returns what is wrong with a declaration, or an empty string.
std::string defect(const ModelSpec& model, int32_t use, const UseCollective& what, int tensor) {
  constexpr int64_t kAlignment = 16, kMaxExtent = int64_t{1} << 40;
  if (what.kind > CollectiveKind::kScatterSum || what.part > UsePart::kBackwardWeights ||
      what.buffer > UseBuffer::kBackward)
    return "UseCollective::kind, part or buffer is not a value of its enumeration";
  if (what.name.empty()) return "UseCollective::name is empty: expected a name";
  if (what.rows < 1 || what.row_elements < 1 || what.rows > kMaxExtent / what.row_elements)
    return fmt::format(
        "UseCollective::rows is {} and UseCollective::row_elements is {}: expected 1 or more, and at most "
        "2^40 elements",
        what.rows, what.row_elements);
  if (adds(what.kind) && !is_floating(what.dtype))
    return fmt::format("UseCollective::dtype is {}: expected fp32, bf16 or fp16 for a sum", aliquot::name(what.dtype));
  if (!may_be_in(what.buffer, what.part))
    return fmt::format(
        "UseCollective::buffer is {}: expected output, kept or scratch in a forward, backward or scratch in a "
        "backward, "
        "and scratch in a backward of weights",
        name(what.buffer));
  if (what.offset_bytes < 0 || what.offset_bytes % kAlignment != 0)
    return fmt::format("UseCollective::offset_bytes is {}: expected a multiple of {}", what.offset_bytes, kAlignment);
  const int64_t size = what.size_bytes(tensor), space = declared_bytes(model, use, what.buffer);
  if (what.offset_bytes > space || size > space - what.offset_bytes)
    return fmt::format("its data needs {} bytes at offset {} in a tensor group of {} ranks, but {} has {} bytes", size,
                       what.offset_bytes, tensor, name(what.buffer), space);
  return {};
}

/// Compares a declaration with the earlier declarations of the use. Returns the defect, or an empty string.
std::string defect_of_order(const std::vector<UseCollective>& all, const UseCollective& what) {
  for (const UseCollective* other = all.data(); other != &what; ++other) {
    if (other->part == UsePart::kBackwardWeights && what.part == UsePart::kBackward)
      return fmt::format(
          "it is declared after \"{}\", whose UseCollective::part is kBackwardWeights: declare it before", other->name);
    if (other->part == what.part && other->name == what.name)
      return "another collective of the same part has this name: expected different names";
  }
  return {};
}

}  // namespace

std::optional<int32_t> next_collective(const UseActivations& use, Verb verb, int32_t after) {
  for (auto i = static_cast<std::size_t>(after + 1); i < use.collectives.size(); ++i) {
    if (runs(use.collectives[i], verb)) return static_cast<int32_t>(i);
  }
  return std::nullopt;
}

bool has_collective_in_output(const Plan& plan, int32_t use) {
  const auto& uses = plan.model.activations.uses;
  return !uses.empty() && std::ranges::any_of(uses[use].collectives, [](const UseCollective& what) {
    return what.buffer == UseBuffer::kOutput;
  });
}

const UseCollective& collective_of(const ModelSpec& model, const Operation& operation) {
  return model.activations.uses[operation.operand].collectives[operation.collective];
}

CollectiveBuffer buffer_of(const UseCollective& collective, int32_t use) {
  switch (collective.buffer) {
    case UseBuffer::kOutput: return {Role::kOutputActivations, use};
    case UseBuffer::kSaved: return {Role::kSavedActivations, use};
    case UseBuffer::kBackward: return {Role::kActivationGradients, -1};
    case UseBuffer::kScratch: break;
  }
  return {Role::kScratch, use};
}

void check_collectives(const ModelSpec& model, int tensor) {
  for (std::size_t use = 0; use < model.activations.uses.size(); ++use) {
    const auto& collectives = model.activations.uses[use].collectives;
    for (const UseCollective& what : collectives) {
      std::string found = defect(model, static_cast<int32_t>(use), what, tensor);
      if (found.empty()) found = defect_of_order(collectives, what);
      if (!found.empty()) throw UsageError(fmt::format("the collective \"{}\" of use {}: {}", what.name, use, found));
    }
  }
}

namespace {

/// Returns the places of a slot of staging memory in the tensor group of the stage that needs most.
StagingPlaces most_staging_places(const Plan& plan) {
  const int tensor = plan.policy.tensor;
  const Topology stage = topology_of_stage(plan.world, plan.stage.count, plan.stage.index);
  StagingPlaces most;
  for (int first = 0; first < stage.rank_count(); first += tensor) {
    std::vector<int> members(static_cast<std::size_t>(tensor));
    std::iota(members.begin(), members.end(), first);
    most = std::max(most, reduce_staging_places(topology_of_group(stage, members)));
  }
  return most;
}

/// Whether sums of this type over tensor groups may use staging memory. NCCL needs none for fp32, unless the sums must
/// be in tree order.
bool may_stage_tensor_sums(const Plan& plan, DType dtype) {
  return !plan.world.over_nccl || sum_needs_staging(plan.world, plan.adds_in_tree_order(), dtype, dtype);
}

}  // namespace

int64_t collective_staging_bytes(const Plan& plan) {
  const int tensor = plan.policy.tensor;
  if (tensor == 1) return 0;
  int64_t longest = 0;
  for (const VirtualStage& run : plan.stage.runs) {
    for (int32_t use = run.first_use; use < run.end_use && !plan.model.activations.uses.empty(); ++use) {
      for (const UseCollective& what : plan.model.activations.uses[use].collectives) {
        if (adds(what.kind) && may_stage_tensor_sums(plan, what.dtype))
          longest = std::max(longest, what.rows_per_part(tensor) * what.row_elements);
      }
    }
  }
  return longest == 0 ? 0 : reduce_staging(most_staging_places(plan), longest).size_bytes();
}

int64_t tensor_sum_staging_bytes(const Plan& plan) {
  if (!may_stage_tensor_sums(plan, plan.policy.precision.gradients)) return 0;
  int64_t longest = 0;
  for (int32_t f = 0; f < static_cast<int32_t>(plan.flats.size()); ++f) {
    if (plan.sums_over_tensor(f)) longest = std::max(longest, plan.flats[f].layout.flat_count() / plan.policy.tensor);
  }
  return longest == 0 ? 0 : reduce_staging(most_staging_places(plan), longest).size_bytes();
}

}  // namespace aliquot
