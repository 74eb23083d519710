#include "engine/run/updater.h"

#include <algorithm>
#include <numeric>

#include "engine/plan/slices.h"
#include "optim/muon/muon.h"

namespace aliquot {
namespace {

/// Returns the index of each parameter in the order of names. The index does not depend on units or ranks, so it is
/// used as the key of random numbers.
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

/// Returns the value of Segment::global_offset for the first element of a tensor. In slices, it differs between the
/// ranks of a tensor group, so that these ranks do not use the same random numbers. It is the index in the full
/// parameter if all ranks have the same number of rows, and slices consist of complete blocks.
int64_t first_of_slice(const FlatSpec& flat, int32_t tensor, int coordinate) {
  if (flat.gradients != TensorGradients::kSlice) return 0;
  const int64_t count = flat.layout.tensors()[tensor].element_count();
  return coordinate * ((count + kBlockElements - 1) / kBlockElements) * kBlockElements;
}

}  // namespace

Updater::Updater(const Parts& parts, const Optimizer& optimizer, DType moments)
    : plan_(parts.plan),
      memory_(parts.memory),
      weights_(parts.weights),
      digests_(parts.digests),
      kernels_(update_kernels(parts.view.device().kind())),
      states_(state_specs(optimizer, moments)),
      matrix_states_({muon_state(moments)}),
      rank_(parts.rank),
      tensor_(parts.tensor),
      parameter_name_order_(order_by_name(plan_.model)),
      segments_(plan_.flats.size()),
      args_(plan_.flats.size()),
      apply_(plan_.flats.size()) {
  int32_t next = 0;
  for (const UnitSpec& unit : plan_.model.units) {
    first_of_unit_.push_back(next);
    next += static_cast<int32_t>(unit.parameters.size());
  }
  for (int32_t f = 0; f < static_cast<int32_t>(plan_.flats.size()); ++f) {
    if (!plan_.trains(f)) continue;
    args_[f] = apply_[f] = constant_args(f, parts);
    args_[f].gradient_dtype = plan_.policy.precision.gradients;
    args_[f].moments = moment_dtype(optimizer, moments);
    args_[f].rounding = rounding(optimizer);
  }
}

/// Returns the arguments of the flat buffer's update that are the same in every step.
UpdateArgs Updater::constant_args(int32_t flat, const Parts& parts) {
  const bool whole = plan_.schedule.zero_stage == 0;
  segments_[flat] = segments_of(flat, whole ? 0 : rank_, whole ? plan_.topology.rank_count() - 1 : rank_);
  UpdateArgs args;
  args.segments = segments_[flat].data();
  if (std::byte* table = memory_.peek(Role::kSegments, flat); table != nullptr)
    parts.view.store(table, segments_[flat].data(), static_cast<int64_t>(segments_[flat].size() * sizeof(Segment)));
  args.segment_count = static_cast<int64_t>(segments_[flat].size());
  args.count = plan_.updated_count(flat);
  return args;
}

std::byte* Updater::state(int32_t flat, std::size_t state) const {
  return memory_.address_between_steps(Role::kOptimizer, flat) + state_offset(flat, state);
}

int64_t Updater::state_offset(int32_t flat, std::size_t state) const {
  int64_t offset = 0;
  for (std::size_t s = 0; s < state; ++s) offset += state_bytes(states(flat)[s], plan_.updated_count(flat));
  return offset;
}

/// Sets the addresses of the optimizer states before each update, because offloaded states have a slot only then.
void Updater::bind_states(int32_t flat) {
  std::byte* at = memory_.address(Role::kOptimizer, flat, AccessMode::kReadsAndWrites);
  for (std::size_t s = 0; s < states(flat).size(); ++s) args_[flat].states[s] = at + state_offset(flat, s);
}

/// On GPUs, sets `args.segments` to the address of the table's copy in device memory.
void Updater::bind_segments(UpdateArgs& args, int32_t flat) const {
  const std::byte* table = memory_.address(Role::kSegments, flat, AccessMode::kReads);
  if (table != nullptr) args.segments = reinterpret_cast<const Segment*>(table);
}

std::vector<Segment> Updater::segments_of(int32_t flat, int first_rank, int last_rank) const {
  const FlatSpec& spec = plan_.flats[flat];
  std::vector<Segment> segments;
  for (int r = first_rank; r <= last_rank; ++r) {
    for (const Piece& piece : slice_pieces(plan_, flat, r, tensor_)) {
      const int32_t parameter = spec.parameters[piece.tensor];
      const ParameterSpec& what = plan_.model.units[spec.unit].parameters[parameter];
      segments.push_back({.offset = (r - first_rank) * spec.layout.shard_count() + piece.shard_offset,
                          .count = piece.count,
                          .global_offset = first_of_slice(spec, piece.tensor, tensor_) + piece.tensor_offset,
                          .parameter = parameter_name_order_[first_of_unit_[spec.unit] + parameter],
                          .lr_scale = what.lr_scale,
                          .decay_scale = what.decayed ? what.decay_scale : 0.0f});
    }
  }
  return segments;
}

const std::byte* Updater::gradient(int32_t flat) const {
  const Role role = plan_.updated_gradients();
  const std::byte* gradients = memory_.address(role, flat, AccessMode::kReads);
  if (role != Role::kGradients || plan_.schedule.zero_stage == 0) return gradients;
  return gradients + rank_ * plan_.flats[flat].layout.shard_count() * element_bytes(plan_.policy.precision.gradients);
}

void Updater::update(Stream& lane, UnitId unit, const UpdateSteps& steps) {
  for (const int32_t f : plan_.flats_of_unit[unit]) {
    if (!plan_.flats[f].trainable) continue;
    if (plan_.flats[f].matrices) {
      apply_[f].gradient = memory_.address(Role::kMuonDirections, f, AccessMode::kReads);
      bind_segments(apply_[f], f);
      apply_[f].master = weights_.master(f);
      apply_[f].check = digests_.update(f);
      kernels_.update(lane, apply_[f], steps.apply);
      continue;
    }
    args_[f].gradient = gradient(f);
    bind_segments(args_[f], f);
    args_[f].master = weights_.master(f);
    args_[f].check = digests_.update(f);
    bind_states(f);
    kernels_.update(lane, args_[f], steps.elements);
  }
}

void Updater::muon_momentum(Stream& lane, int32_t flat, const UpdateSteps& steps) {
  args_[flat].gradient = gradient(flat);
  bind_segments(args_[flat], flat);
  args_[flat].master = {
      .whole = reinterpret_cast<float*>(memory_.address(Role::kMuonDirections, flat, AccessMode::kWrites))};
  args_[flat].check = digests_.muon_momentum(flat);
  bind_states(flat);
  kernels_.update(lane, args_[flat], steps.blend);
}

}  // namespace aliquot
