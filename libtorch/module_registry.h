#pragma once
// Maps submodules to the ShardedModule that they belong to.

#include <cstddef>
#include <map>
#include <mutex>
#include <torch/torch.h>

#pragma GCC visibility push(default)
namespace aliquot {

class ShardedModule;

struct ModulePlace {
  ShardedModule* owner = nullptr;  // null if the submodule is not gathered as a unit
  size_t called = 0;               // index in ModuleUnits::called
};

/// Shared by all ranks of the process. Thread-safe.
class ModuleRegistry {
 public:
  static ModuleRegistry& instance() {
    static ModuleRegistry registry;
    return registry;
  }

  void add(const torch::nn::Module* module, const ModulePlace& place) {
    const std::lock_guard lock(mutex_);
    places_[module] = place;
  }
  void remove(const torch::nn::Module* module) {
    const std::lock_guard lock(mutex_);
    places_.erase(module);
  }
  ModulePlace find(const torch::nn::Module* module) {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(module);
    return found == places_.end() ? ModulePlace{} : found->second;
  }

 private:
  std::mutex mutex_;
  std::map<const torch::nn::Module*, ModulePlace> places_;
};

}  // namespace aliquot
#pragma GCC visibility pop
