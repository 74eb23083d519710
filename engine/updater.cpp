#include "engine/updater.h"

#include <algorithm>
#include <numeric>

namespace aliquot {
namespace {

/// Each parameter's place among all, by name: the same whatever the units and the world, so it can key random numbers.
std::vector<int32_t> order_by_name(const ModelSpec& model) {
  std::vector<const std::string*> names;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) names.push_back(&parameter.tensor.name);
  }
  std::vector<int32_t> order(names.size()), place(names.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return *names[a] < *names[b]; });
  for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<int32_t>(i);
  return place;
}

}  // namespace

Updater::Updater(const Parts& parts, const Optimizer& optimizer, DType moments)
    : plan_(parts.plan),
      memory_(parts.memory),
      weights_(parts.weights),
      kernels_(update_kernels(parts.view.device().kind())),
      states_(state_specs(optimizer, moments)),
      rank_(parts.rank),
      number_of_parameter_(order_by_name(plan_.model)),
      segments_(plan_.flats.size()),
      args_(plan_.flats.size()) {
  int32_t next = 0;
  for (const UnitSpec& unit : plan_.model.units) {
    first_of_unit_.push_back(next);
    next += static_cast<int32_t>(unit.parameters.size());
  }
  const bool whole = plan_.schedule.zero_stage == 0;
  for (int32_t f = 0; f < static_cast<int32_t>(plan_.flats.size()); ++f) {
    if (!plan_.flats[f].trainable) continue;
    segments_[f] = segments_of(f, whole ? 0 : rank_, whole ? plan_.topology.rank_count() - 1 : rank_);
    UpdateArgs& args = args_[f];
    args.gradient_dtype = plan_.policy.precision.gradients;
    args.moments = moment_dtype(optimizer, moments);
    args.rounding = rounding(optimizer);
    args.segments = segments_[f].data();
    if (std::byte* table = memory_.address(Role::kSegments, f); table != nullptr) {
      parts.view.store(table, segments_[f].data(), static_cast<int64_t>(segments_[f].size() * sizeof(Segment)));
      args.segments = reinterpret_cast<const Segment*>(table);
    }
    args.segment_count = static_cast<int64_t>(segments_[f].size());
    args.count = updated_count(f);
  }
}

int64_t Updater::updated_count(int32_t flat) const {
  return plan_.flats[flat].layout.shard_count() * (plan_.schedule.zero_stage == 0 ? plan_.topology.rank_count() : 1);
}

std::byte* Updater::state(int32_t flat, std::size_t state) const {
  return memory_.resting(Role::kOptimizer, flat) + state_offset(flat, state);
}

int64_t Updater::state_offset(int32_t flat, std::size_t state) const {
  int64_t offset = 0;
  for (std::size_t s = 0; s < state; ++s) offset += state_bytes(states_[s], updated_count(flat));
  return offset;
}

/// Where a step puts things differs from flat to flat, not from step to step; but what is offloaded is here only now.
void Updater::take_addresses(int32_t flat) {
  UpdateArgs& args = args_[flat];
  args.gradient = gradient(flat);
  args.master = weights_.master(flat);
  std::byte* states = memory_.address(Role::kOptimizer, flat);
  for (std::size_t s = 0; s < states_.size(); ++s) args.states[s] = states + state_offset(flat, s);
}

std::vector<Segment> Updater::segments_of(int32_t flat, int first_rank, int last_rank) const {
  const FlatSpec& spec = plan_.flats[flat];
  std::vector<Segment> segments;
  for (int r = first_rank; r <= last_rank; ++r) {
    for (const Piece& piece : spec.layout.pieces(r)) {
      const int32_t parameter = spec.parameters[piece.tensor];
      const ParameterSpec& what = plan_.model.units[spec.unit].parameters[parameter];
      segments.push_back({.offset = (r - first_rank) * spec.layout.shard_count() + piece.shard_offset,
                          .count = piece.count,
                          .global_offset = piece.tensor_offset,
                          .parameter = number_of_parameter_[first_of_unit_[spec.unit] + parameter],
                          .lr_scale = what.lr_scale,
                          .decay_scale = what.decayed ? 1.0f : 0.0f});
    }
  }
  return segments;
}

const std::byte* Updater::gradient(int32_t flat) const {
  const Schedule& schedule = plan_.schedule;
  const std::byte* standing = memory_.address(Role::kGradients, flat);
  if (schedule.zero_stage == 0) return standing;
  if (schedule.reduces_in_place) {
    return standing + rank_ * plan_.flats[flat].layout.shard_count() * element_bytes(plan_.policy.precision.gradients);
  }
  return memory_.address(Role::kReduced, flat);
}

void Updater::update(Stream& lane, UnitId unit, const UpdateStep& step) {
  for (const int32_t f : plan_.flats_of_unit[unit]) {
    if (!plan_.flats[f].trainable) continue;
    take_addresses(f);
    kernels_.update(lane, args_[f], step);
  }
}

}  // namespace aliquot
