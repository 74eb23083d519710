// Checks of the flat buffers of a plan against the declarations of the model. Does not use flats(), which makes them,
// so that an error in flats() is found.
#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "engine/proof/validate_parts.h"
#include "optim/muon/muon.h"

namespace aliquot {
namespace {

using Defective = std::optional<std::string>;

bool in_range(int64_t value, std::size_t count) { return value >= 0 && std::cmp_less(value, count); }

class FlatChecker {
 public:
  explicit FlatChecker(const Plan& plan) : plan_(plan), tensor_(plan.policy.tensor) {
    for (const UnitSpec& unit : plan.model.units) flat_counts_.emplace_back(unit.parameters.size(), 0);
  }

  Defective check() {
    if (tensor_ < 1 || plan_.policy.replica_count < 1)
      return fmt::format("the policy has {} replicas and tensor groups of {} ranks: expected 1 or more of both",
                         plan_.policy.replica_count, tensor_);
    for (std::size_t f = 0; f < plan_.flats.size(); ++f) {
      if (Defective found = check_flat(f)) return found;
    }
    for (std::size_t unit = 0; unit < flat_counts_.size(); ++unit) {
      for (std::size_t p = 0; p < flat_counts_[unit].size(); ++p) {
        if (flat_counts_[unit][p] != 1)
          return fmt::format("{} is in {} flat buffers: expected 1", plan_.model.units[unit].parameters[p].tensor.name,
                             flat_counts_[unit][p]);
      }
    }
    return std::nullopt;
  }

 private:
  Defective check_flat(std::size_t f) {
    const FlatSpec& flat = plan_.flats[f];
    const auto& parameters = plan_.model.units[flat.unit].parameters;
    const bool listed = !flat.parameters.empty() && flat.parameters.size() == flat.layout.tensors().size() &&
                        std::ranges::is_sorted(flat.parameters) &&
                        std::ranges::all_of(flat.parameters, [&](int32_t p) { return in_range(p, parameters.size()); });
    if (!listed)
      return fmt::format("flat buffer {} does not list a parameter of its unit for each tensor, in ascending order", f);
    for (std::size_t t = 0; t < flat.parameters.size(); ++t) {
      const ParameterSpec& parameter = parameters[flat.parameters[t]];
      ++flat_counts_[flat.unit][flat.parameters[t]];
      if (const std::string_view what = difference(flat, flat.layout.tensors()[t], parameter); !what.empty())
        return fmt::format("flat buffer {} and its parameter {} differ in the {}", f, parameter.tensor.name, what);
    }
    return check_parts(f);
  }

  /// Returns what differs between a flat buffer, one of its tensors, and the declaration of the parameter.
  std::string_view difference(const FlatSpec& flat, const TensorSpec& tensor, const ParameterSpec& parameter) const {
    const TensorSpec& full = parameter.tensor;
    if (tensor.name != full.name) return "name";
    if (tensor.dtype != full.dtype) return "type of elements";
    if (tensor.trainable != full.trainable || flat.trainable != full.trainable) return "trainability";
    if (flat.gradients != gradients(parameter)) return "relation of gradients in a tensor group";
    if (tensor.shape != largest_slice(parameter)) return "shape of the largest slice";
    const bool whole = plan_.policy.matrix_updates && parameter.matrix && full.trainable && is_matrix(full.shape);
    return flat.matrices != whole ? "kind of updates" : "";
  }

  TensorGradients gradients(const ParameterSpec& parameter) const {
    if (tensor_ == 1) return TensorGradients::kSame;
    if (parameter.split.dimension >= 0) return TensorGradients::kSlice;
    const bool partial = parameter.partial_gradient && parameter.tensor.trainable;
    return partial ? TensorGradients::kSum : TensorGradients::kSame;
  }

  std::vector<int64_t> largest_slice(const ParameterSpec& parameter) const {
    std::vector<int64_t> shape = parameter.tensor.shape;
    if (parameter.split.dimension < 0 || tensor_ == 1) return shape;
    int64_t& extent = shape[static_cast<std::size_t>(parameter.split.dimension)];
    std::vector<DimensionPart> parts = parameter.split.parts;
    if (parts.empty()) parts.emplace_back(extent);
    extent = 0;
    for (int rank = 0; rank < tensor_; ++rank) {
      int64_t own = 0;
      for (const DimensionPart& part : parts) {
        const auto [first, end] = rank_range(part.length / part.unit, rank, tensor_);
        own += (end - first) * part.unit;
      }
      extent = std::max(extent, own);
    }
    return shape;
  }

  /// Replicas, and the ranks of a tensor group that add gradients, divide a shard into equal parts of complete blocks.
  Defective check_parts(std::size_t f) const {
    const FlatSpec& flat = plan_.flats[f];
    const int64_t adders = flat.gradients == TensorGradients::kSum ? tensor_ : 1;
    const int64_t multiple = plan_.policy.replica_count * adders * kBlockElements;
    if (flat.layout.shard_count() % multiple == 0) return std::nullopt;
    return fmt::format("a shard of flat buffer {} has {} elements: expected a multiple of {}", f,
                       flat.layout.shard_count(), multiple);
  }

  const Plan& plan_;
  int tensor_;
  std::vector<std::vector<int>> flat_counts_;  // for each parameter of each unit, the number of its flat buffers
};

}  // namespace

std::optional<std::string> invalid_flats(const Plan& plan) {
  const std::size_t units = plan.model.units.size();
  std::vector<std::vector<int32_t>> flats_of_unit(units);
  for (std::size_t f = 0; f < plan.flats.size(); ++f) {
    const FlatSpec& flat = plan.flats[f];
    if (!in_range(flat.unit, units))
      return fmt::format("flat buffer {} belongs to unit {}: expected a unit from 0 to {}", f, flat.unit, units - 1);
    if (flat.layout.rank_count() != plan.topology.rank_count())
      return fmt::format("flat buffer {} is divided over {} ranks: expected {}", f, flat.layout.rank_count(),
                         plan.topology.rank_count());
    flats_of_unit[static_cast<std::size_t>(flat.unit)].push_back(static_cast<int32_t>(f));
  }
  if (flats_of_unit != plan.flats_of_unit)
    return "Plan::flats_of_unit does not list the flat buffers of each unit in ascending order";
  return FlatChecker(plan).check();
}

namespace {

/// Returns what is wrong with one matrix group.
Defective invalid_matrix_group(const Plan& plan, std::size_t group) {
  const MatrixGroup& what = plan.matrix_groups[group];
  if (what.flats.empty()) return fmt::format("matrix group {} names no flat buffer", group);
  for (const int32_t flat : what.flats) {
    if (!in_range(flat, plan.flats.size()))
      return fmt::format("matrix group {} names flat buffer {}, which does not exist", group, flat);
  }
  std::vector<int32_t> flats;
  for (const OwnedMatrix& matrix : what.matrices) {
    const bool exists = in_range(matrix.flat, plan.flats.size()) &&
                        in_range(matrix.tensor, plan.flats[matrix.flat].layout.tensors().size());
    if (!exists)
      return fmt::format("matrix group {} names tensor {} of flat buffer {}, which does not exist", group,
                         matrix.tensor, matrix.flat);
    const std::vector<int64_t>& shape = plan.flats[matrix.flat].layout.tensors()[matrix.tensor].shape;
    if (shape != std::vector<int64_t>{matrix.shape.rows, matrix.shape.columns})
      return fmt::format("matrix group {} has another shape for tensor {} of flat buffer {}", group, matrix.tensor,
                         matrix.flat);
    if (flats.empty() || flats.back() != matrix.flat) flats.push_back(matrix.flat);
  }
  // Operations of the group work on the flat buffers that it names.
  if (flats != what.flats)
    return fmt::format("matrix group {} does not name exactly the flat buffers of its matrices, in order", group);
  return std::nullopt;
}

}  // namespace

std::optional<std::string> invalid_matrix_groups(const Plan& plan) {
  std::vector<int32_t> group_of_unit(plan.model.units.size(), -1);
  for (std::size_t group = 0; group < plan.matrix_groups.size(); ++group) {
    if (Defective found = invalid_matrix_group(plan, group)) return found;
    for (const int32_t flat : plan.matrix_groups[group].flats) {
      int32_t& own = group_of_unit[plan.flats[flat].unit];
      if (own != -1 && own != static_cast<int32_t>(group))
        return fmt::format(
            "matrices of unit {} are in the matrix groups {} and {}: expected one group, because its "
            "update waits for one group",
            plan.model.units[plan.flats[flat].unit].name, own, group);
      own = static_cast<int32_t>(group);
    }
  }
  return std::nullopt;
}

}  // namespace aliquot
