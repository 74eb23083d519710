#include "optim/optimizer.h"

#include <charconv>
#include <fmt/format.h>
#include <type_traits>

#include "kernels/error.h"

namespace aliquot {
namespace {

void check_range(std::string_view who, std::string_view what, float value, bool good, std::string_view range) {
  if (!good) throw UsageError(fmt::format("{}: {} is {}; it must be {}", who, what, value, range));
}

void check_positive(std::string_view who, std::string_view what, float value) {
  check_range(who, what, value, value >= 0.0f && value < 1e30f, "0 or more");
}

void check_beta(std::string_view who, std::string_view what, float value) {
  check_range(who, what, value, value >= 0.0f && value < 1.0f, "at least 0 and below 1");
}

void check_options(std::string_view who, const Sgd& sgd) {
  check_beta(who, "momentum", sgd.momentum);
  check_range(who, "dampening", sgd.dampening, sgd.dampening >= 0.0f && sgd.dampening <= 1.0f, "between 0 and 1");
  if (sgd.nesterov && (sgd.momentum == 0.0f || sgd.dampening != 0.0f)) {
    throw UsageError("sgd: nesterov needs a momentum above 0 and no dampening");
  }
}

template <typename O>
void check_options(std::string_view who, const O& options) {
  check_beta(who, "beta1", options.beta1);
  check_beta(who, "beta2", options.beta2);
  if constexpr (!std::is_same_v<O, Lion>) check_positive(who, "eps", options.eps);
}

}  // namespace

std::vector<StateSpec> state_specs(const Optimizer& optimizer, DType moments) {
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
  const auto* of_codes = std::get_if<AdamW8bit>(&optimizer);
  return of_codes == nullptr ? Rounding::kNearest : of_codes->rounding;
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
  constexpr std::string_view kNames[] = {"adamw", "adam", "sgd", "lion", "adamw8bit"};
  static_assert(std::variant_size_v<Optimizer> == std::size(kNames));
  return kNames[optimizer.index()];
}

double decimal(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  double read = 0.0;
  std::from_chars(text, end, read);
  return read;
}

double learning_rate(const Optimizer& optimizer) {
  return std::visit([](const auto& options) { return decimal(options.lr); }, optimizer);
}

void check(const Optimizer& optimizer, DType moments) {
  const std::string_view who = name(optimizer);
  std::visit(
      [&](const auto& options) {
        check_positive(who, "lr", options.lr);
        check_positive(who, "weight_decay", options.weight_decay);
        check_options(who, options);
      },
      optimizer);
  if (moments != DType::kFloat32 && moments != DType::kBFloat16) {
    throw UsageError(fmt::format("{}: state is kept in float32 or bfloat16, not in {}", who, name(moments)));
  }
}

bool is_decayed(std::span<const int64_t> shape, bool decay_all) { return decay_all || shape.size() > 1; }

}  // namespace aliquot
