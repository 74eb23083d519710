#pragma once
// Calling the submodules of a LibTorch module that may be sharded.

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

/// Has `engine` shard the module's parameters, in the manner of FSDP2: declares its submodules as units, makes every
/// rank's shards of the values that the module has, the same on every rank, and gives its own memory back. From then on
/// the module is used through call(), its loss.backward() adds to the engine's gradients, and engine.step() takes the place
/// of an optimizer's. Collective; nothing else is declared to the engine. Buffers stay each rank's own.
inline std::unique_ptr<ShardedModule> fully_shard(torch::nn::Module& module, Engine& engine,
                                                  const ShardOptions& options = {}) {
  return std::make_unique<ShardedModule>(module, engine, options);
}

namespace libtorch {

/// Hands on every tensor that a forward may return: one, or several in tuples, pairs and vectors.
template <typename Output, typename Each>
void for_each_tensor(const Output& output, const Each& each) {
  if constexpr (std::is_same_v<Output, at::Tensor>) {
    each(output);
  } else if constexpr (requires { std::tuple_size<Output>::value; }) {
    std::apply([&](const auto&... part) { (for_each_tensor(part, each), ...); }, output);
  } else if constexpr (requires { output.begin(); }) {
    for (const auto& part : output) for_each_tensor(part, each);
  } else {
    static_assert(!sizeof(Output), "a forward that is called through aliquot::call returns tensors, or tuples of them");
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

/// module.forward(inputs...), with the parameters whole where the module is sharded, and no more than that where it is not:
/// C++ modules have no hooks, so a forward calls its submodules through this. Takes modules, their holders and pointers;
/// of a Sequential it calls one after the other.
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
