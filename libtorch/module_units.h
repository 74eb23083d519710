#pragma once
// Divides the parameters of a LibTorch module into units.

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <torch/torch.h>
#include <utility>
#include <vector>

#include "kernels/system/error.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// The parameters of a submodule, or one parameter that several submodules share. They are gathered together.
struct ModuleUnit {
  std::string name;                                         // "h.0", or the name of the shared parameter
  std::vector<std::pair<std::string, at::Tensor>> members;  // with full names, such as "h.0.attn.weight"
};

/// A submodule whose forward is one use.
struct CalledModule {
  std::string name;
  const torch::nn::Module* module = nullptr;
  std::vector<int32_t> units;  // the units that are gathered during the forward
};

struct ModuleUnits {
  std::vector<ModuleUnit> units;
  std::vector<CalledModule> called;
  std::vector<size_t> order;               // calls made by forward, as indices into `called`; an index may occur twice
  std::set<const at::TensorImpl*> tables;  // weights of Embedding and EmbeddingBag
};

namespace libtorch {

/// Appends the names of all children that have parameters, in order of registration. Sequential and ModuleList are
/// replaced by their children.
inline void add_children(const torch::nn::Module& module, const std::string& prefix, std::vector<std::string>& names) {
  for (const auto& child : module.named_children()) {
    const torch::nn::Module& inner = *child.value();
    const bool contains = inner.as<torch::nn::Sequential>() != nullptr || inner.as<torch::nn::ModuleList>() != nullptr;
    if (contains) {
      add_children(inner, prefix + child.key() + ".", names);
    } else if (!inner.parameters().empty()) {
      names.push_back(prefix + child.key());
    }
  }
}

/// Finds the submodules by name and sets `called` and `order`. Throws UsageError if a name does not exist, or if one
/// submodule contains another.
inline ModuleUnits find_called(const torch::nn::Module& module, const std::vector<std::string>& names) {
  const auto modules = module.named_modules(std::string(), false);
  ModuleUnits cut;
  for (const std::string& name : names) {
    const auto known =
        std::find_if(cut.called.begin(), cut.called.end(), [&](const CalledModule& each) { return each.name == name; });
    cut.order.push_back(static_cast<size_t>(known - cut.called.begin()));
    if (known != cut.called.end()) continue;
    const auto* found = modules.find(name);
    if (found == nullptr) throw UsageError("ShardOptions::calls: the module has no submodule " + name);
    cut.called.push_back({name, found->get(), {}});
  }
  for (const CalledModule& outer : cut.called) {
    for (const CalledModule& inner : cut.called) {
      if (inner.name.rfind(outer.name + ".", 0) == 0)
        throw UsageError("ShardOptions::calls: submodule " + outer.name + " contains " + inner.name +
                         ": only one of them can be a unit");
    }
  }
  return cut;
}

/// Maps a parameter to the called modules that contain it, as indices in ModuleUnits::called.
using Holders = std::map<const at::TensorImpl*, std::vector<size_t>>;

inline Holders find_holders(const torch::nn::Module& module, const ModuleUnits& cut) {
  Holders holders;
  for (size_t c = 0; c < cut.called.size(); ++c) {
    for (const auto& each : cut.called[c].module->named_parameters()) {
      auto& of = holders[each.value().unsafeGetTensorImpl()];
      if (of.empty() || of.back() != c) of.push_back(c);
    }
  }
  for (const auto& each : module.named_parameters()) {
    if (holders.count(each.value().unsafeGetTensorImpl()) == 0)
      throw UsageError("parameter " + each.key() +
                       " belongs to no unit: move it to a submodule, or add its submodule to ShardOptions::calls");
  }
  return holders;
}

/// Adds one unit with the parameters that only this module uses, and one unit for each parameter that it shares with
/// another called module.
inline void add_units(CalledModule& called, const Holders& holders, ModuleUnits& cut) {
  ModuleUnit own{called.name, {}};
  for (const auto& each : called.module->named_parameters()) {
    const bool is_shared = holders.at(each.value().unsafeGetTensorImpl()).size() > 1;
    const auto same = [&](const auto& member) { return member.second.is_same(each.value()); };
    const auto unit_with_parameter = std::find_if(cut.units.begin(), cut.units.end(), [&](const ModuleUnit& unit) {
      return std::any_of(unit.members.begin(), unit.members.end(), same);
    });
    const std::string name = called.name + "." + each.key();
    if (unit_with_parameter != cut.units.end()) {
      called.units.push_back(static_cast<int32_t>(unit_with_parameter - cut.units.begin()));
    } else if (is_shared) {
      called.units.push_back(static_cast<int32_t>(cut.units.size()));
      cut.units.push_back({name, {{name, each.value()}}});
    } else if (std::none_of(own.members.begin(), own.members.end(), same)) {
      own.members.emplace_back(name, each.value());
    }
  }
  if (own.members.empty()) return;
  called.units.push_back(static_cast<int32_t>(cut.units.size()));
  cut.units.push_back(std::move(own));
}

}  // namespace libtorch

/// Divides the parameters of `module` into units. `calls` lists submodules in the order in which forward calls them. If
/// `calls` is empty, uses all children with parameters, with containers replaced by their children. A parameter that
/// several submodules share is a separate unit, which is gathered in each call of these submodules. Throws UsageError
/// with the name of a parameter that belongs to no listed submodule.
inline ModuleUnits module_units(const torch::nn::Module& module, std::vector<std::string> calls) {
  if (calls.empty()) libtorch::add_children(module, std::string(), calls);
  ModuleUnits cut = libtorch::find_called(module, calls);
  const libtorch::Holders holders = libtorch::find_holders(module, cut);
  for (CalledModule& each : cut.called) libtorch::add_units(each, holders, cut);
  // Excludes the module itself: modules() can return it only if a shared_ptr owns it, and it may be a local variable.
  for (const auto& each : module.modules(/*include_self=*/false)) {
    if (const auto* embedding = each->as<torch::nn::Embedding>(); embedding != nullptr)
      cut.tables.insert(embedding->weight.unsafeGetTensorImpl());
    if (const auto* bag = each->as<torch::nn::EmbeddingBag>(); bag != nullptr)
      cut.tables.insert(bag->weight.unsafeGetTensorImpl());
  }
  return cut;
}

}  // namespace aliquot
#pragma GCC visibility pop
