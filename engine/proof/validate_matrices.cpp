#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "engine/proof/validate_parts.h"
#include "optim/muon/orthogonalize.h"

namespace aliquot {
namespace {

constexpr OperationId kNone = -1;
constexpr std::array<Verb, 4> kMatrixVerbs = {Verb::kMuonMomentum, Verb::kGatherMatrices, Verb::kOrthogonalize,
                                              Verb::kScatterMatrices};

/// For each verb of kMatrixVerbs, the operation of a matrix group, or kNone if walk() has not reached the operation.
struct GroupProgress {
  std::array<OperationId, kMatrixVerbs.size()> done = {kNone, kNone, kNone, kNone};
};

class MatrixChecker {
 public:
  explicit MatrixChecker(const Proof& proof)
      : proof_(proof),
        plan_(proof.plan),
        groups_(plan_.matrix_groups.size()),
        group_of_unit_(plan_.model.units.size(), -1) {
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      for (const int32_t f : plan_.matrix_groups[group].flats)
        group_of_unit_[plan_.flats[f].unit] = static_cast<int32_t>(group);
    }
  }

  void walk() {
    check_groups();
    const auto& operations = plan_.schedule.operations;
    for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
      const Operation& operation = operations[id];
      if (belongs_to_matrix_group(operation.verb)) advance(id, operation);
      if (operation.verb == Verb::kUpdate) update(id, operation.operand);
    }
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      for (std::size_t part = 0; part < kMatrixVerbs.size(); ++part) {
        if (wanted(group, part) == (groups_[group].done[part] != kNone)) continue;
        add(kNone, fmt::format("matrix group {} has {} operation {}", group,
                               wanted(group, part) ? "no" : "an unnecessary", name(kMatrixVerbs[part])));
      }
    }
  }

 private:
  /// Checks that every matrix is in exactly one group, and does not overlap other matrices of its owner in the planned
  /// memory.
  void check_groups() {
    std::vector<std::vector<bool>> seen;
    for (const FlatSpec& flat : plan_.flats)
      seen.emplace_back(flat.layout.tensors().size(), !flat.matrices || !proof_.plan.unit_is_here[flat.unit]);
    for (const MatrixGroup& group : plan_.matrix_groups) {
      std::vector<int64_t> held(static_cast<std::size_t>(plan_.topology.rank_count()), 0);
      for (const OwnedMatrix& matrix : group.matrices) {
        if (matrix.owner < 0 || matrix.owner >= plan_.topology.rank_count() || seen[matrix.flat][matrix.tensor]) {
          add(kNone, fmt::format("a matrix of unit {} has no valid owner, or is in two matrix groups", unit_of(matrix)),
              DefectKind::kPlace);
          continue;
        }
        seen[matrix.flat][matrix.tensor] = true;
        int64_t& of_owner = held[matrix.owner];
        const bool fits = group.in_place || (matrix.offset_bytes >= of_owner &&
                                             matrix.offset_bytes + matrix.size_bytes() <= group.held_bytes);
        of_owner = matrix.offset_bytes + matrix.size_bytes();
        if (!fits || group.scratch_bytes < orthogonalize_scratch_bytes(matrix.shape))
          add(kNone, fmt::format("a matrix of unit {} does not fit in the memory of its owner", unit_of(matrix)),
              DefectKind::kPlace);
      }
    }
    for (std::size_t f = 0; f < seen.size(); ++f) {
      if (std::ranges::count(seen[f], false) > 0)
        add(kNone,
            fmt::format("a matrix of unit {} is in no matrix group", plan_.model.units[plan_.flats[f].unit].name),
            DefectKind::kPlace);
    }
  }
  const std::string& unit_of(const OwnedMatrix& matrix) const {
    return plan_.model.units[plan_.flats[matrix.flat].unit].name;
  }

  bool wanted(std::size_t group, std::size_t part) const {
    if (kMatrixVerbs[part] == Verb::kGatherMatrices) return !plan_.matrix_groups[group].in_place;
    return kMatrixVerbs[part] != Verb::kScatterMatrices || plan_.topology.rank_count() > 1;
  }

  void advance(OperationId id, const Operation& operation) {
    GroupProgress& group = groups_[operation.operand];
    const auto part = static_cast<std::size_t>(std::ranges::find(kMatrixVerbs, operation.verb) - kMatrixVerbs.begin());
    if (group.done[part] != kNone) add(id, fmt::format("{} occurs twice for its matrix group", describe(id)));
    check_follows(id, group, part, operation.operand);
    group.done[part] = id;
  }

  /// Checks that operation `id` waits for the previous operation of its matrix group, in the order of kMatrixVerbs.
  /// Leaves out verbs that the matrix group does not need.
  void check_follows(OperationId id, const GroupProgress& group, std::size_t part, int32_t place) {
    while (part > 0 && !wanted(static_cast<std::size_t>(place), part - 1)) --part;
    if (part > 0 && !ended(group.done[part - 1], id))
      add(id, fmt::format("{} does not wait for the operation {} of its matrix group", describe(id),
                          name(kMatrixVerbs[part - 1])));
  }

  void update(OperationId id, UnitId unit) {
    if (const int32_t group = group_of_unit_[unit]; group >= 0)
      check_follows(id, groups_[group], kMatrixVerbs.size(), group);
  }

  bool ended(OperationId earlier, OperationId id) const {
    if (earlier == kNone) return false;
    const Moment now = proof_.order.moment(1, id);
    return proof_.order.ended_here(proof_.order.moment(1, earlier), proof_.order.at_start(now));
  }
  std::string describe(OperationId id) const { return proof_.defects.describe(id); }
  void add(OperationId id, std::string sentence, DefectKind kind = DefectKind::kUpdate) {
    std::vector<OperationId> operations;
    if (id != kNone) operations.push_back(id);
    proof_.defects.add(kind, std::move(operations), std::move(sentence));
  }

  const Proof& proof_;
  const Plan& plan_;
  std::vector<GroupProgress> groups_;
  std::vector<int32_t> group_of_unit_;
};

}  // namespace

void check_matrices(const Proof& proof) {
  if (!proof.plan.policy.evaluation && !proof.plan.policy.replay) MatrixChecker(proof).walk();
}

}  // namespace aliquot
