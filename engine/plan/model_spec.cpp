#include "engine/plan/model_spec.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <unordered_set>

#include "kernels/system/error.h"
#include "optim/muon/muon.h"
#include "sharding/state.h"
#include "sharding/state_names.h"

namespace aliquot {
namespace {

/// The first characters of a name, for a message.
std::string shortened(std::string_view name) {
  constexpr std::size_t kMost = 80;
  return printable(name.substr(0, kMost)) + (name.size() > kMost ? "..." : "");
}

constexpr int64_t kMaxElements = int64_t{1} << 58;

/// Throws UsageError for names and shapes that a checkpoint cannot store, so that training does not fail at its first
/// save.
void check_savable(const TensorSpec& tensor) {
  constexpr std::size_t kPathOverheadBytes = 64;  // longest prefix and suffix that a checkpoint adds
  std::string defect = path_defect(tensor.name);
  if (tensor.name.size() > kPathBytesLimit - kPathOverheadBytes)
    defect = fmt::format("is longer than {} bytes", kPathBytesLimit - kPathOverheadBytes);
  if (!defect.empty())
    throw UsageError(
        fmt::format("parameter \"{}\" cannot be saved in a checkpoint: its name {}", shortened(tensor.name), defect));
  if (!checked_element_count(tensor.shape)) {
    throw UsageError(fmt::format(
        "parameter {} cannot be saved in a checkpoint: it has a negative extent, more than {} extents or more than "
        "2^58 elements",
        shortened(tensor.name), kShapeRankLimit));
  }
}

/// Throws UsageError if names "a" and "a/b" both exist: in an HDF5 file "a" would be a tensor and a group.
void check_groups(const std::unordered_set<std::string_view>& names) {
  for (const std::string_view name : names) {
    for (std::size_t slash = name.find('/'); slash != std::string_view::npos; slash = name.find('/', slash + 1)) {
      if (!names.contains(name.substr(0, slash))) continue;
      throw UsageError(
          fmt::format("parameters {} and {} cannot be in one checkpoint: the part of a name before '/' is an HDF5 "
                      "group, so no tensor can have that name",
                      shortened(name), shortened(name.substr(0, slash))));
    }
  }
}

void check_parameters(const ModelSpec& model) {
  std::unordered_set<std::string_view> units, parameters;
  int64_t element_count = 0;
  for (const UnitSpec& unit : model.units) {
    if (!units.insert(unit.name).second)
      throw UsageError(fmt::format("two units are both named {}: give each unit its own name", shortened(unit.name)));
    for (const ParameterSpec& parameter : unit.parameters) {
      if (!parameters.insert(parameter.tensor.name).second) {
        throw UsageError(
            fmt::format("two parameters are both named {}; a tied tensor is declared once, in a unit of its own",
                        shortened(parameter.tensor.name)));
      }
      check_savable(parameter.tensor);
      element_count += parameter.tensor.element_count();
      if (element_count > kMaxElements) throw UsageError("the model has more than 2^58 elements");
    }
  }
  check_groups(parameters);
}

void check_splits(const ModelSpec& model) {
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const std::string defect = parameter.split.defect(parameter.tensor.shape);
      if (!defect.empty()) throw UsageError(fmt::format("the split of {}: {}", parameter.tensor.name, defect));
    }
  }
}

void check_scales(const ModelSpec& model) {
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const bool good = parameter.lr_scale >= 0 && parameter.decay_scale >= 0 && std::isfinite(parameter.lr_scale) &&
                        std::isfinite(parameter.decay_scale);
      if (good) continue;
      throw UsageError(
          fmt::format("parameter {} has lr_scale {} and decay_scale {}: expected finite numbers, 0 or more",
                      parameter.tensor.name, parameter.lr_scale, parameter.decay_scale));
    }
  }
}

void check_activations(const ModelSpec& model) {
  const auto& [uses, backward_bytes] = model.activations;
  if (!uses.empty() && uses.size() != model.uses.size()) {
    throw UsageError(fmt::format("activations are declared for {} uses, but the declared order has {}", uses.size(),
                                 model.uses.size()));
  }
  const bool negative = std::ranges::any_of(uses, [](const UseActivations& use) {
    return use.output_bytes < 0 || use.kept_bytes < 0 || use.scratch_bytes < 0 || use.weight_inputs_bytes < 0;
  });
  if (negative || backward_bytes < 0)
    throw UsageError("activations are declared with a negative size: expected 0 bytes or more");
  for (std::size_t use = 0; use < uses.size(); ++use) {
    if (uses[use].splits_backward || uses[use].weight_inputs_bytes == 0) continue;
    throw UsageError(
        fmt::format("UseActivations::weight_inputs_bytes of use {} is {}, but UseActivations::splits_backward is "
                    "false: expected 0 bytes",
                    use, uses[use].weight_inputs_bytes));
  }
  if (uses.empty() && backward_bytes > 0)
    throw UsageError(
        fmt::format("ActivationSpec::backward_bytes is {}, but ActivationSpec::uses is empty: declare the "
                    "activations of each use",
                    backward_bytes));
}

}  // namespace

void ModelSpec::check() const {
  if (units.empty()) throw UsageError("the model declares no unit: call add_unit() before materialize()");
  check_parameters(*this);
  check_scales(*this);
  check_splits(*this);
  std::vector<bool> used(units.size(), false);
  for (const auto& use : uses) {
    if (use.empty()) throw UsageError("the declared order has a use without units");
    for (const UnitId unit : use) {
      if (unit < 0 || unit >= static_cast<UnitId>(units.size())) {
        throw UsageError(
            fmt::format("the declared order uses unit {}, but there are {} units: expected an id from 0 to {}", unit,
                        units.size(), units.size() - 1));
      }
      if (std::count(use.begin(), use.end(), unit) > 1) {
        throw UsageError(
            fmt::format("use {} in the declared order (counted from 0) names unit {} twice: expected each unit at most "
                        "once in a use",
                        &use - uses.data(), units[unit].name));
      }
      used[unit] = true;
    }
  }
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (!used[u])
      throw UsageError(fmt::format("unit {} is never used in the declared order: add it to a use of declare_order()",
                                   units[u].name));
  }
  check_activations(*this);
}

std::vector<FlatSpec> flats(const ModelSpec& model, int rank_count, int replica_count, bool matrices_apart,
                            int64_t red_zone_blocks, int tensor_ranks) {
  const auto is_whole_matrix = [&](const ParameterSpec& parameter) {
    return matrices_apart && parameter.matrix && parameter.tensor.trainable && is_matrix(parameter.tensor.shape);
  };
  const auto belong_together = [&](const ParameterSpec& a, const ParameterSpec& b) {
    return a.tensor.dtype == b.tensor.dtype && a.tensor.trainable == b.tensor.trainable &&
           is_whole_matrix(a) == is_whole_matrix(b) && a.gradients_over(tensor_ranks) == b.gradients_over(tensor_ranks);
  };
  std::vector<FlatSpec> all;
  for (UnitId u = 0; u < static_cast<UnitId>(model.units.size()); ++u) {
    const auto& parameters = model.units[u].parameters;
    std::vector<bool> taken(parameters.size(), false);
    for (std::size_t first = 0; first < parameters.size(); ++first) {
      if (taken[first]) continue;
      const ParameterSpec& leader = parameters[first];
      std::vector<int32_t> members;
      std::vector<TensorSpec> tensors;
      for (std::size_t p = first; p < parameters.size(); ++p) {
        if (!belong_together(leader, parameters[p])) continue;
        taken[p] = true;
        members.push_back(static_cast<int32_t>(p));
        tensors.push_back(parameters[p].tensor);
        tensors.back().shape = largest_slice_shape(parameters[p].tensor.shape, parameters[p].split, tensor_ranks);
      }
      const TensorGradients gradients = leader.gradients_over(tensor_ranks);
      // Each rank of the tensor group adds an equal part of the full gradients.
      const int parts_per_shard = replica_count * (gradients == TensorGradients::kSum ? tensor_ranks : 1);
      all.push_back({u, std::move(members), leader.tensor.trainable,
                     FlatLayout(std::move(tensors), rank_count, parts_per_shard, red_zone_blocks),
                     is_whole_matrix(leader), gradients});
    }
  }
  return all;
}

}  // namespace aliquot
