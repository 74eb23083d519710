#include <algorithm>

#include "engine/plan/writer/step_writer.h"

namespace aliquot {

/// Overlaps communication with compute: while the owners orthogonalize one group, the matrices of the next group are
/// gathered. Units without matrices are updated while the first group is gathered.
void StepWriter::update_all(OperationId norm) {
  const auto count = static_cast<int32_t>(plan_.matrix_groups.size());
  if (count > 0) gather_matrices(0, norm);
  for (UnitId unit = 0; unit < static_cast<UnitId>(units_.size()); ++unit) {
    if (trains(unit) && group_of_unit_[unit] == kNone) update_after(unit, norm);
  }
  for (int32_t group = 0; group < count; ++group) {
    if (group + 1 < count) gather_matrices(group + 1, norm);
    orthogonalize_and_scatter(group);
    if (group > 0) update_group(group - 1, norm);
  }
  if (count > 0) update_group(count - 1, norm);
}

void StepWriter::update_group(int32_t group, OperationId norm) {
  UnitId updated = -1;
  for (const int32_t f : plan_.matrix_groups[group].flats) {  // the flat buffers of a unit follow one another
    if (flats_[f].unit != updated) update_after(flats_[f].unit, norm);
    updated = flats_[f].unit;
  }
  add_matrix_buffers(group);
}

void StepWriter::update_after(UnitId unit, OperationId norm) {
  const int32_t group = group_of_unit_[unit];
  std::vector<Wait> after = {{norm}};
  if (group != kNone && group_states_[group].scatter != kNone) after.push_back({group_states_[group].scatter});
  update(unit, policy_.micro_batch_count - 1, std::move(after));
}

void StepWriter::gather_matrices(int32_t group, OperationId norm) {
  GroupState& state = group_states_[group];
  const int32_t m = policy_.micro_batch_count - 1;
  state.blend = add(Verb::kMuonMomentum, group, m, {{norm}});
  if (!plan_.matrix_groups[group].in_place) state.collect = add(Verb::kGatherMatrices, group, m, {{state.blend}});
}

void StepWriter::orthogonalize_and_scatter(int32_t group) {
  GroupState& state = group_states_[group];
  const int32_t m = policy_.micro_batch_count - 1;
  state.orthogonalize = add(Verb::kOrthogonalize, group, m);
  wait(state.orthogonalize, {state.collect});
  if (rank_count_ > 1) state.scatter = add(Verb::kScatterMatrices, group, m, {{state.orthogonalize}});
}

void StepWriter::add_matrix_buffers(int32_t group) {
  const MatrixGroup& what = plan_.matrix_groups[group];
  const GroupState& state = group_states_[group];
  for (const int32_t f : what.flats) {
    const OperationId update = units_[flats_[f].unit].update;
    std::vector<Wait> ends = {{update}};
    if (what.in_place && state.scatter != kNone)
      ends.push_back({state.scatter, GroupId::kShard});  // in the scatter, other ranks read the buffer
    add_buffer(Role::kMuonDirections, f, {state.blend, update}, std::move(ends));
  }
  if (!what.in_place)
    add_buffer(Role::kOwnedMatrices, group, {state.collect, state.scatter}, {{state.scatter, GroupId::kShard}});
  add_buffer(Role::kOrthogonalizeScratch, group, {state.orthogonalize, state.orthogonalize}, {{state.orthogonalize}});
}

}  // namespace aliquot
