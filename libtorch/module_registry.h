#pragma once
// Which submodules of this program belong to which ShardedModule.

#include <cstddef>
#include <map>
#include <mutex>
#include <torch/torch.h>

#pragma GCC visibility push(default)
namespace aliquot {

class ShardedModule;

/// A submodule's place; no owner: it is not gathered as one.
struct ModulePlace {
  ShardedModule* owner = nullptr;
  size_t called = 0;  // in ModuleUnits::called
};

/// Thread-safe: ranks that are threads share it.
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
