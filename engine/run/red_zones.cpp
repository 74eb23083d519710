#include "engine/run/red_zones.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/plan/sizes.h"
#include "engine/plan/slices.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// In every type, this pattern is a number of small magnitude, so an addition to it changes its bits, as an assignment
/// does.
constexpr std::byte kPattern{0xA5};

std::byte red_zone_of_values(const Policy& policy) { return std::byte(policy.quantize_weights ? 0x00 : 0xFF); }

}  // namespace

void fill_red_zones_of_values(const Plan& plan, const Weights& weights, const HostView& view, int coordinate) {
  const int64_t bytes = element_bytes(plan.policy.precision.compute);
  std::vector<std::byte> filling;
  for (int32_t f = 0; f < static_cast<int32_t>(plan.flats.size()); ++f) {
    if (!plan.is_here(f)) continue;
    const FlatLayout& layout = plan.flats[f].layout;
    const int64_t held_begin = weights.first_rank() * layout.shard_count(),
                  held_end = (weights.last_rank() + 1) * layout.shard_count();
    for (const Gap& gap : slice_gaps(plan, f, coordinate)) {
      const int64_t begin = std::max(gap.begin, held_begin), end = std::min(gap.end, held_end);
      if (begin >= end) continue;
      filling.assign(static_cast<std::size_t>((end - begin) * bytes), red_zone_of_values(plan.policy));
      view.store(weights.working_copy(f, begin), filling.data(), std::ssize(filling));
    }
  }
}

RedZones::RedZones(const Plan& plan, const StepMemory& memory, const Device& device, int coordinate)
    : plan_(plan), memory_(memory), device_(device), coordinate_(coordinate) {
  for (int32_t f = 0; f < static_cast<int32_t>(plan.flats.size()); ++f)
    gaps_.push_back(slice_gaps(plan, f, coordinate));
}

std::vector<RedZones::Zone> RedZones::zones(OperationId operation) const {
  const Operation& what = plan_.schedule.operations[operation];
  std::vector<Zone> zones;
  for (const UnitId unit : plan_.model.uses[what.operand]) {
    for (const int32_t flat : plan_.flats_of_unit[unit]) {
      if (reads_parameters(what.verb)) add_gaps(zones, flat, Role::kParameters);
      if (computes_weight_gradients(what.verb) && plan_.flats[flat].trainable) add_gaps(zones, flat, Role::kGradients);
    }
  }
  if (!plan_.model.activations.uses.empty()) add_activations(zones, operation);
  return zones;
}

void RedZones::add_gaps(std::vector<Zone>& zones, int32_t flat, Role role) const {
  const bool gradients = role == Role::kGradients;
  const Precision& precision = plan_.policy.precision;
  const int64_t bytes = element_bytes(gradients ? precision.gradients : precision.compute);
  std::byte* at = gradients ? memory_.peek(role, flat) : memory_.full_parameters(flat);
  for (const Gap& gap : gaps_[flat]) {
    zones.push_back({.at = at + gap.begin * bytes,
                     .size_bytes = (gap.end - gap.begin) * bytes,
                     .expected = gradients ? kPattern : red_zone_of_values(plan_.policy),
                     .begins = gradients,
                     .role = role,
                     .whose = flat,
                     .gap = gap});
  }
}

void RedZones::add_activations(std::vector<Zone>& zones, OperationId operation) const {
  const int32_t use = plan_.schedule.operations[operation].operand;
  const auto add = [&](Role role, int32_t whose) {
    const BufferId buffer = memory_.current(role, whose);
    if (buffer == kNoBuffer) return;
    zones.push_back(activation_zone(buffer));
    zones.back().begins = plan_.schedule.buffers[buffer].first == operation;
  };
  if (use > 0) add(Role::kOutputActivations, use - 1);
  for (const Role role : {Role::kOutputActivations, Role::kSavedActivations, Role::kScratch, Role::kWeightInputs})
    add(role, use);
  // During other operations, another lane may still receive or send this buffer.
  if (computes_input_gradients(plan_.schedule.operations[operation].verb)) add(Role::kActivationGradients, -1);
}

RedZones::Zone RedZones::activation_zone(BufferId buffer) const {
  const PlannedBuffer& planned = plan_.schedule.buffers[buffer];
  const int64_t declared = declared_bytes(plan_.model, planned.role, planned.flat);
  return {.at = memory_.peek(buffer) + declared,
          .size_bytes = planned.size_bytes - declared,
          .expected = kPattern,
          .begins = true,
          .role = planned.role,
          .whose = planned.flat,
          .gap = {}};
}

void RedZones::fill_received(Stream& lane, Role role, int32_t whose) const {
  const Zone zone = activation_zone(memory_.current(role, whose));
  device_.kernels().fill(lane, zone.at, DType::kUInt8, static_cast<float>(zone.expected), zone.size_bytes);
}

void RedZones::fill(Stream& compute, OperationId operation) const {
  for (const Zone& zone : zones(operation)) {
    if (zone.begins)
      device_.kernels().fill(compute, zone.at, DType::kUInt8, static_cast<float>(zone.expected), zone.size_bytes);
  }
}

void RedZones::compare(Stream& compute, OperationId operation) const {
  if (device_.kind() == DeviceKind::kHost) {
    compute.run([this, operation, all = std::make_shared<const std::vector<Zone>>(zones(operation))] {
      for (const Zone& zone : *all) compare(zone, zone.at, operation);
    });
    return;
  }
  std::vector<std::byte> bytes;
  for (const Zone& zone : zones(operation)) {
    bytes.resize(static_cast<std::size_t>(zone.size_bytes));
    device_.kernels().copy(compute, bytes.data(), zone.at, zone.size_bytes);
    compute.synchronize();
    compare(zone, bytes.data(), operation);
  }
}

void RedZones::compare(const Zone& zone, const std::byte* bytes, OperationId operation) const {
  const auto written = [&](std::byte byte) { return byte != zone.expected; };
  const std::byte* end = bytes + zone.size_bytes;
  const std::byte* first = std::find_if(bytes, end, written);
  if (first == end) return;
  const std::byte* last = end - 1;
  while (!written(*last)) --last;
  throw UsageError(fmt::format("{} wrote {} (found by EngineOptions::check)", title(plan_, operation),
                               defect(zone, first - bytes, last - bytes)));
}

/// Describes a write to a red zone and names the tensor whose bounds it exceeds. Most such writes exceed the end of the
/// tensor before the gap. The tensor after the gap is named if the write ends directly before it and does not begin at
/// the start of the gap.
std::string RedZones::defect(const Zone& zone, int64_t first_byte, int64_t last_byte) const {
  if (zone.role != Role::kGradients && zone.role != Role::kParameters) {
    const int64_t declared = declared_bytes(plan_.model, zone.role, zone.whose);
    const std::string whose = zone.whose < 0 ? "" : fmt::format(" of use {}", zone.whose);
    return fmt::format("beyond the {} memory{}: at byte {}, but {} bytes are declared", name(zone.role), whose,
                       declared + first_byte, declared);
  }
  const bool gradients = zone.role == Role::kGradients;
  const Precision& precision = plan_.policy.precision;
  const int64_t bytes = element_bytes(gradients ? precision.gradients : precision.compute);
  const FlatLayout& layout = plan_.flats[zone.whose].layout;
  const int64_t first = zone.gap.begin + first_byte / bytes, last = zone.gap.begin + last_byte / bytes;
  const int32_t next = zone.gap.after + 1;
  const bool has_next = next < static_cast<int32_t>(layout.tensors().size());
  const bool of_next = zone.gap.after < 0 || (has_next && last == zone.gap.end - 1 && first > zone.gap.begin);
  const int32_t tensor = of_next ? next : zone.gap.after;
  const int64_t count = slice_of(plan_, zone.whose, tensor, coordinate_).element_count();
  const bool split = plan_.flats[zone.whose].gradients == TensorGradients::kSlice;
  return fmt::format(
      "{} the {} of {}: at element {}, but {}", of_next ? "before" : "beyond", gradients ? "gradient" : "values",
      layout.tensors()[tensor].name, (of_next ? last : first) - layout.tensor_offset(tensor),
      count == 0 ? "the slice of this rank has no elements"
                 : fmt::format("the {} are 0 to {}", split ? "elements of this rank's slice" : "declared elements",
                               count - 1));
}

}  // namespace aliquot
