#pragma once
// Functions that shard a LibTorch module and call its submodules.

#include <concepts>
#include <memory>
#include <torch/torch.h>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "libtorch/sharded_module.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Shards the module's parameters with `engine`, as fully_shard() of FSDP2 does. Declares submodules as units, copies
/// the module's values to shards, and frees the module's own parameter memory. The values must be equal on all ranks.
/// Afterwards, call submodules through call(), and call engine.step() instead of an optimizer; loss.backward() adds to
/// the engine's gradients. Collective. The engine must have no other units. Module buffers are not sharded.
inline std::unique_ptr<ShardedModule> fully_shard(torch::nn::Module& module, Engine& engine,
                                                  const ShardOptions& options = {}) {
  return std::make_unique<ShardedModule>(module, engine, options);
}

namespace libtorch {

/// Calls `each` for every tensor in the result of a forward: a tensor, or tuples, pairs and vectors of tensors.
template <typename Output, typename Each>
void for_each_tensor(const Output& output, const Each& each) {
  if constexpr (std::is_same_v<Output, at::Tensor>) {
    each(output);
  } else if constexpr (requires { std::tuple_size<Output>::value; }) {
    std::apply([&](const auto&... part) { (for_each_tensor(part, each), ...); }, output);
  } else if constexpr (requires { output.begin(); }) {
    for (const auto& part : output) for_each_tensor(part, each);
  } else {
    static_assert(!sizeof(Output),
                  "aliquot::call() requires a forward that returns tensors, or tuples or vectors of them");
  }
}

template <typename Forward>
auto run_at(const torch::nn::Module& module, const Forward& forward) {
  const ModulePlace place = ModuleRegistry::instance().find(&module);
  if (place.owner == nullptr) return forward();
  return place.owner->run(place.called, forward,
                          [](const auto& output, const auto& each) { for_each_tensor(output, each); });
}

}  // namespace libtorch

/// Returns module.forward(inputs...). If the module is a unit of a ShardedModule, its full parameters are available
/// during the call. C++ modules have no hooks, so the forward of the parent must call its submodules with this
/// function. Accepts modules, module holders and pointers. The children of a Sequential are called one after the other.
template <typename M, typename... Inputs>
auto call(M&& module, Inputs&&... inputs) {
  using Plain = std::remove_cvref_t<M>;
  if constexpr (!std::derived_from<Plain, torch::nn::Module>) {
    return call(*module, std::forward<Inputs>(inputs)...);
  } else if constexpr (std::is_same_v<Plain, torch::nn::SequentialImpl>) {
    auto value = at::Tensor(inputs...);
    return libtorch::run_at(module, [&] {
      for (torch::nn::AnyModule& each : module)
        value = libtorch::run_at(*each.ptr(), [&] { return each.forward<at::Tensor>(value); });
      return value;
    });
  } else {
    return libtorch::run_at(module, [&] { return module.forward(std::forward<Inputs>(inputs)...); });
  }
}

}  // namespace aliquot
#pragma GCC visibility pop
