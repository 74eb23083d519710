#pragma once
// A LibTorch module whose parameters an engine shards.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>
#include <utility>
#include <vector>

#include "libtorch/engine_parameter.h"
#include "libtorch/module_registry.h"
#include "libtorch/module_units.h"

#include "engine/engine.h"

#pragma GCC visibility push(default)
namespace aliquot {

struct ShardOptions {
  /// Names of the submodules that forward calls, in order, one entry per call. Each is gathered as one unit. Empty: all
  /// children with parameters, in order of registration; Sequential and ModuleList are replaced by their children.
  std::vector<std::string> calls = {};
  /// Returns the options of a parameter. By default, all parameters have the same options, except the weights of
  /// embeddings, which Muon does not orthogonalize. requires_grad() always determines whether a parameter is trained.
  std::function<ParameterOptions(const std::string& name, const at::Tensor& parameter)> parameter = {};
};

/// Stores a module's parameters in the engine's memory, and opens scopes around the forward and backward of its
/// submodules. Made by fully_shard(). Used by one rank's thread. The module and the engine must outlive it. Autograd
/// graphs of the module must not be used after its destruction. Throws errors of the engine, and UsageError for a
/// module that cannot be sharded.
class ShardedModule {
 public:
  ShardedModule(torch::nn::Module& module, Engine& engine, const ShardOptions& options);
  ~ShardedModule() {
    for (const CalledModule& each : module_units_.called) ModuleRegistry::instance().remove(each.module);
  }
  ShardedModule(const ShardedModule&) = delete;
  ShardedModule& operator=(const ShardedModule&) = delete;

  /// Calls loss.backward(), and abandons the step if it throws, so that the next step starts normally. Programs may
  /// also call loss.backward() directly, but then an exception does not abandon the step.
  void backward(const at::Tensor& loss);

  /// Runs `forward` while the full parameters of a called submodule are available. `outputs(result, f)` calls f for
  /// every tensor of the result. A hook on these tensors gathers the parameters again when backward reaches them. In
  /// NoGradGuard mode the call is an evaluation, which is allowed only between steps.
  template <typename Forward, typename Outputs>
  auto run(size_t called, const Forward& forward, const Outputs& outputs) {
    const bool trains = torch::GradMode::is_enabled();
    if (trains) discard_calls_of_previous_step();
    auto result = [&] {
      const std::vector<UnitId>& units = module_units_.called[called].units;
      const CallScope scope(*this, called, trains ? engine_.forward(units) : engine_.evaluate(units), false);
      return forward();
    }();
    if (!trains) return result;
    const size_t call = pending_calls_.size();
    pending_calls_.push_back(called);
    outputs(result, [&](const at::Tensor& output) {
      if (output.requires_grad()) output.register_hook([this, call](const at::Tensor&) { begin_backward(call); });
    });
    return result;
  }

 private:
  /// While this object exists, the full parameters of a called submodule are available.
  class CallScope {
   public:
    CallScope(ShardedModule& owner, size_t called, Scope scope, bool backward);
    CallScope(const CallScope&) = delete;
    CallScope& operator=(const CallScope&) = delete;
    ~CallScope();

   private:
    template <typename Each>
    void for_each_parameter(const Each& each) const;

    ShardedModule& owner_;
    size_t called_;
    bool is_backward_;
    std::optional<Scope> scope_;
  };

  void declare(const ShardOptions& options);
  void materialize();
  void discard_calls_of_previous_step();
  void begin_backward(size_t call);
  void end_backward();
  void close_backward();

  Engine& engine_;
  ModuleUnits module_units_;
  std::vector<std::vector<std::unique_ptr<EngineParameter>>> parameters_by_unit_;
  std::vector<size_t> pending_calls_;        // calls of this micro-batch whose backward has not begun
  int64_t pending_calls_step_ = 0;           // Engine::step_count() when these calls were made
  std::optional<CallScope> backward_scope_;  // scope of the call whose backward is running
  bool in_backward_ = false;
  std::string replaced_gradient_;  // name of a parameter whose gradient the model replaced during backward, or empty
};

template <typename Each>
void ShardedModule::CallScope::for_each_parameter(const Each& each) const {
  for (const UnitId unit : owner_.module_units_.called[called_].units) {
    for (const auto& engine_parameter : owner_.parameters_by_unit_[static_cast<size_t>(unit)]) each(*engine_parameter);
  }
}

inline ShardedModule::CallScope::CallScope(ShardedModule& owner, size_t called, Scope scope, bool backward)
    : owner_(owner), called_(called), is_backward_(backward), scope_(std::move(scope)) {
  for_each_parameter([&](EngineParameter& engine_parameter) {
    engine_parameter.follow();
    if (is_backward_) engine_parameter.begin_gradient();
  });
}

inline ShardedModule::CallScope::~CallScope() {
  if (is_backward_) {
    for_each_parameter([&](const EngineParameter& engine_parameter) {
      if (!engine_parameter.end_gradient()) owner_.replaced_gradient_ = engine_parameter.name();
    });
  }
  scope_.reset();
  for_each_parameter([](EngineParameter& engine_parameter) {
    engine_parameter.follow();
  });  // the closed scope has set guard addresses
}

namespace libtorch {

/// LibTorch allocates activations and passes their gradients on, so the engine cannot send them to another pipeline
/// stage, or add them over a tensor group.
inline void refuse_pipeline_and_tensor_groups(const Engine& engine) {
  const auto refuse = [](const std::string& option, int value, const std::string& missing) {
    if (value == 1) return;
    throw UsageError("EngineOptions::" + option + " is " + std::to_string(value) +
                     ", but LibTorch allocates the activations of a module, so the engine cannot " + missing +
                     ": set it to 1 and shard over all ranks with zero_stage or replicas");
  };
  refuse("pipeline", engine.options().pipeline, "send them to the next pipeline stage");
  refuse("tensor", engine.options().tensor, "exchange them in a tensor group");
}

}  // namespace libtorch

inline ShardedModule::ShardedModule(torch::nn::Module& module, Engine& engine, const ShardOptions& options)
    : engine_(engine), module_units_(module_units(module, options.calls)) {
  libtorch::refuse_pipeline_and_tensor_groups(engine);
  declare(options);
  materialize();
  for (size_t c = 0; c < module_units_.called.size(); ++c)
    ModuleRegistry::instance().add(module_units_.called[c].module, {this, c});
}

inline void ShardedModule::declare(const ShardOptions& options) {
  for (const ModuleUnit& each : module_units_.units) {
    Unit& unit = engine_.add_unit(each.name);
    auto& engine_parameters = parameters_by_unit_.emplace_back();
    for (const auto& [name, parameter] : each.members) {
      EngineParameter& engine_parameter =
          *engine_parameters.emplace_back(std::make_unique<EngineParameter>(name, parameter));
      const ParameterOptions default_options{.matrix =
                                                 module_units_.tables.count(parameter.unsafeGetTensorImpl()) == 0};
      ParameterOptions how = options.parameter ? options.parameter(name, parameter) : default_options;
      how.trainable = parameter.requires_grad();
      unit.add("." + name, parameter.sizes().vec(), engine_parameter.value_slot(), engine_parameter.gradient_slot(),
               how);
    }
  }
  std::vector<std::vector<UnitId>> uses;
  for (const size_t called : module_units_.order) uses.push_back(module_units_.called[called].units);
  engine_.declare_order(std::move(uses));
}

/// Initializes the shards with the module's values, which are the same on every rank.
inline void ShardedModule::materialize() {
  const Precision& precision = engine_.plan().policy.precision;
  std::map<std::string, at::Tensor> values;
  for (const auto& engine_parameters : parameters_by_unit_) {
    for (const auto& engine_parameter : engine_parameters) {
      engine_parameter->check(torch_dtype(precision.compute));
      values[engine_parameter->name()] = engine_parameter->parameter().detach().contiguous().view({-1});
    }
  }
  engine_.materialize([&](const ParameterSpec& parameter, int64_t offset, std::span<float> to) {
    const auto count = static_cast<int64_t>(to.size());
    at::from_blob(to.data(), {count}, at::kFloat).copy_(values.at(parameter.tensor.name).narrow(0, offset, count));
  });
  for (const auto& engine_parameters : parameters_by_unit_) {
    for (const auto& engine_parameter : engine_parameters) engine_parameter->move_in(torch_dtype(precision.gradients));
  }
}

inline void ShardedModule::backward(const at::Tensor& loss) {
  try {
    loss.backward();
  } catch (...) {
    backward_scope_.reset();
    pending_calls_.clear();
    in_backward_ = false;
    engine_.abandon();
    throw;
  }
}

/// Discards calls of a step that was abandoned after forward, because their backward never runs.
inline void ShardedModule::discard_calls_of_previous_step() {
  if (std::exchange(pending_calls_step_, engine_.step_count()) == engine_.step_count()) return;
  pending_calls_.clear();
  in_backward_ = false;
}

/// LibTorch runs the backward of calls in reverse order. When that of `call` begins, each later call has run its
/// backward, or has none. Skips the later calls that have none, and opens the scope of `call`.
inline void ShardedModule::begin_backward(size_t call) {
  // The hook of another output of the same call has already begun this backward.
  if (call >= pending_calls_.size()) return;
  if (!std::exchange(in_backward_, true)) {
    torch::autograd::Engine::get_default_engine().queue_callback([this] { end_backward(); });
  }
  close_backward();
  for (; pending_calls_.size() > call + 1; pending_calls_.pop_back())
    engine_.skip(module_units_.called[pending_calls_.back()].units);
  const size_t called = pending_calls_.back();
  pending_calls_.pop_back();
  backward_scope_.emplace(*this, called, engine_.backward(module_units_.called[called].units), true);
}

inline void ShardedModule::end_backward() {
  in_backward_ = false;
  close_backward();
  for (; !pending_calls_.empty(); pending_calls_.pop_back())
    engine_.skip(module_units_.called[pending_calls_.back()].units);
}

inline void ShardedModule::close_backward() {
  backward_scope_.reset();
  if (replaced_gradient_.empty()) return;
  throw UsageError("the gradient of " + std::exchange(replaced_gradient_, {}) +
                   " was replaced during backward: do not assign .grad, and do not use create_graph");
}

}  // namespace aliquot
#pragma GCC visibility pop
