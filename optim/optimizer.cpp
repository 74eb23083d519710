#include "optim/optimizer.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <type_traits>

#include "kernels/system/error.h"
#include "optim/custom_loops.h"

namespace aliquot {
namespace {

void check_range(std::string_view optimizer_name, std::string_view option, float value, bool good,
                 std::string_view range) {
  if (!good)
    throw UsageError(fmt::format("{}: invalid value {} for {}: expected {}", optimizer_name, value, option, range));
}

void check_non_negative(std::string_view optimizer_name, std::string_view option, float value) {
  check_range(optimizer_name, option, value, value >= 0.0f && value < 1e30f, "at least 0 and below 1e30");
}

void check_beta(std::string_view optimizer_name, std::string_view option, float value) {
  check_range(optimizer_name, option, value, value >= 0.0f && value < 1.0f, "at least 0 and below 1");
}

/// Checks the options that all built-in optimizers have.
template <typename O>
void check_common(std::string_view optimizer_name, const O& options) {
  check_non_negative(optimizer_name, "lr", options.lr);
  check_non_negative(optimizer_name, "weight_decay", options.weight_decay);
}

void check_options(std::string_view optimizer_name, const Sgd& sgd) {
  check_common(optimizer_name, sgd);
  check_beta(optimizer_name, "momentum", sgd.momentum);
  check_range(optimizer_name, "dampening", sgd.dampening, sgd.dampening >= 0.0f && sgd.dampening <= 1.0f,
              "between 0 and 1");
  if (sgd.nesterov && (sgd.momentum == 0.0f || sgd.dampening != 0.0f)) {
    throw UsageError("sgd: nesterov requires a momentum above 0 and a dampening of 0");
  }
}

template <typename O>
void check_options(std::string_view optimizer_name, const O& options) {
  check_common(optimizer_name, options);
  check_beta(optimizer_name, "beta1", options.beta1);
  check_beta(optimizer_name, "beta2", options.beta2);
  if constexpr (!std::is_same_v<O, Lion>) check_non_negative(optimizer_name, "eps", options.eps);
}

void check_options(std::string_view optimizer_name, const Muon& muon) {
  check_common(optimizer_name, muon);
  check_beta(optimizer_name, "momentum", muon.momentum);
  check_range(optimizer_name, "eps", muon.eps, muon.eps > 0.0f && muon.eps < 1.0f, "above 0 and below 1");
  check_range(optimizer_name, "iterations", static_cast<float>(muon.iterations),
              muon.iterations >= 1 && muon.iterations <= 100, "1 to 100");
  check_options("muon.rest", muon.rest);
  check_range("muon.rest", "lr", muon.rest.lr, muon.rest.lr > 0.0f,
              "a number above 0, because the learning rate of matrices is relative to it");
  if (muon.products != DType::kFloat32 && muon.products != DType::kBFloat16) {
    throw UsageError(
        fmt::format("muon: invalid value {} for products: expected float32 or bfloat16", name(muon.products)));
  }
}

void check_options(std::string_view optimizer_name, const CustomOptimizer& custom) {
  if (custom.description == nullptr) throw UsageError("the CustomOptimizer is empty: make it with custom_optimizer()");
  const double lr = custom.description->lr;
  if (!(lr >= 0.0 && lr < 1e30))
    throw UsageError(
        fmt::format("{}: invalid value {} for lr: expected at least 0 and below 1e30", optimizer_name, lr));
}

}  // namespace

CustomOptimizer described(CustomDescription description) {
  if (description.name.empty()) throw UsageError("custom_optimizer(): the name is empty");
  if (std::ranges::count(kOptimizerNames, description.name) > 0) {
    throw UsageError(fmt::format("custom_optimizer(): '{}' is the name of a built-in optimizer; choose another name",
                                 description.name));
  }
  auto states = description.state_names;
  std::ranges::sort(states);
  if (const auto twice = std::ranges::adjacent_find(states); twice != states.end()) {
    throw UsageError(fmt::format("{}: two states have the name '{}'", description.name, *twice));
  }
  return {std::make_shared<const CustomDescription>(std::move(description))};
}

std::vector<StateSpec> state_specs(const Optimizer& optimizer, DType moments) {
  if (const auto* custom = std::get_if<CustomOptimizer>(&optimizer)) {
    std::vector<StateSpec> specs;
    for (const std::string_view state : custom->description->state_names) specs.push_back({state, moments});
    return specs;
  }
  if (const auto* sgd = std::get_if<Sgd>(&optimizer)) {
    if (sgd->momentum == 0.0f) return {};
    return {{"momentum_buffer", moments}};
  }
  if (std::holds_alternative<Lion>(optimizer)) return {{"exp_avg", moments}};
  if (std::holds_alternative<AdamW8bit>(optimizer)) {
    return {{"exp_avg", DType::kUInt8},
            {"exp_avg_scale", DType::kFloat32, kBlockElements},
            {"exp_avg_sq", DType::kUInt8},
            {"exp_avg_sq_scale", DType::kFloat32, kBlockElements}};
  }
  return {{"exp_avg", moments}, {"exp_avg_sq", moments}};
}

DType moment_dtype(const Optimizer& optimizer, DType moments) {
  return std::holds_alternative<AdamW8bit>(optimizer) ? DType::kUInt8 : moments;
}

Rounding rounding(const Optimizer& optimizer) {
  const auto* adamw8bit = std::get_if<AdamW8bit>(&optimizer);
  return adamw8bit == nullptr ? Rounding::kNearest : adamw8bit->rounding;
}

int64_t state_bytes(const StateSpec& spec, int64_t count) {
  return (count + spec.elements_per_value - 1) / spec.elements_per_value * element_bytes(spec.dtype);
}

int64_t state_bytes(const Optimizer& optimizer, DType moments, int64_t count) {
  int64_t bytes = 0;
  for (const StateSpec& spec : state_specs(optimizer, moments)) bytes += state_bytes(spec, count);
  return bytes;
}

std::string_view name(const Optimizer& optimizer) {
  if (const auto* custom = std::get_if<CustomOptimizer>(&optimizer)) {
    return custom->description == nullptr ? "custom optimizer" : std::string_view(custom->description->name);
  }
  return kOptimizerNames[optimizer.index()];
}

double decimal(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  double read = 0.0;
  std::from_chars(text, end, read);
  return read;
}

double learning_rate(const Optimizer& optimizer) {
  return std::visit(
      [](const auto& options) {
        using O = std::decay_t<decltype(options)>;
        if constexpr (std::is_same_v<O, CustomOptimizer>) {
          return options.description->lr;
        } else if constexpr (std::is_same_v<O, Muon>) {
          return decimal(options.rest.lr);
        } else {
          return decimal(options.lr);
        }
      },
      optimizer);
}

void check(const Optimizer& optimizer, DType moments) {
  const std::string_view optimizer_name = name(optimizer);
  std::visit([&](const auto& options) { check_options(optimizer_name, options); }, optimizer);
  if (moments != DType::kFloat32 && moments != DType::kBFloat16) {
    throw UsageError(fmt::format("{}: invalid dtype {} of the moments: expected float32 or bfloat16", optimizer_name,
                                 name(moments)));
  }
  if (moments == DType::kBFloat16 && state_specs(optimizer, moments).size() > kMaxRoundedStates &&
      std::holds_alternative<CustomOptimizer>(optimizer)) {
    throw UsageError(
        fmt::format("{}: moments in bfloat16 require at most {} states: use fewer states or moments in float32",
                    optimizer_name, kMaxRoundedStates));
  }
}

bool is_decayed(std::span<const int64_t> shape, bool decay_all) { return decay_all || shape.size() > 1; }

}  // namespace aliquot
