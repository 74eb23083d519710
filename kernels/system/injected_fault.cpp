#include "kernels/system/injected_fault.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr std::array kKinds = {std::pair{"kill", FaultKind::kKill},   std::pair{"stop", FaultKind::kStop},
                               std::pair{"throw", FaultKind::kThrow}, std::pair{"slow", FaultKind::kSlow},
                               std::pair{"nan", FaultKind::kNan},     std::pair{"enospc", FaultKind::kFullDisk},
                               std::pair{"flip", FaultKind::kFlip}};

[[noreturn]] void throw_invalid_fault(std::string_view text, const std::string& reason) {
  throw UsageError(
      fmt::format("invalid ALIQUOT_FAULT '{}': {}; write it as rank=1,step=3,op=reduce,kind=kill.", text, reason));
}

template <typename Number>
Number parse_number(std::string_view text, std::string_view digits, std::string_view name, Number minimum) {
  Number value{};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || !(value >= minimum) ||
      !(value < Number{1000000000}))
    throw_invalid_fault(text, fmt::format("{} '{}' is not a number in [{}, 1000000000)", name, digits, minimum));
  return value;
}

/// Parses `value`, such as "kill" or "slow:2s".
void set_kind(InjectedFault& fault, std::string_view text, std::string_view value) {
  const std::string_view name = value.substr(0, value.find(':'));
  const auto found = std::ranges::find(kKinds, name, [](const auto& kind) { return std::string_view(kind.first); });
  if (found == kKinds.end())
    throw_invalid_fault(text,
                        fmt::format("kind '{}' is not one of kill, stop, throw, slow:2s, nan, enospc and flip", value));
  fault.kind = found->second;
  const bool slow = fault.kind == FaultKind::kSlow;
  if (slow != (name.size() < value.size()) || (slow && !value.ends_with('s')))
    throw_invalid_fault(text, "kind=slow requires a time in seconds, as in kind=slow:2s, and other kinds accept none");
  if (slow) fault.seconds = parse_number<double>(text, value.substr(5, value.size() - 6), "slow", 0.0);
}

void set_field(InjectedFault& fault, std::string_view text, std::string_view field) {
  const std::size_t equals = field.find('=');
  const std::string_view name = field.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? "" : field.substr(equals + 1);
  if (name == "rank") {
    fault.rank = parse_number<int>(text, value, "rank", 0);
  } else if (name == "step") {
    fault.step = parse_number<int64_t>(text, value, "step", 1);
  } else if (name == "op") {
    fault.operation = value;
  } else if (name == "unit" && !value.empty()) {
    fault.unit = value;
  } else if (name == "of" && !value.empty()) {
    fault.of = value;
  } else if (name == "times" && (value == "once" || value == "always")) {
    fault.is_permanent = value == "always";
  } else if (name == "in" && (value == "step" || value == "replay")) {
    fault.in_replay = value == "replay";
  } else if (name == "kind") {
    set_kind(fault, text, value);
  } else {
    throw_invalid_fault(
        text,
        fmt::format("'{}' is not rank=NUMBER, step=NUMBER, op=OPERATION, unit=NAME, of=NAME, times=once or always, "
                    "in=step or replay, or kind=KIND",
                    field));
  }
}

InjectedFault parse(std::string_view text) {
  InjectedFault fault;
  std::set<std::string_view> given;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string_view field = text.substr(at, end - at);
    const std::string_view name = field.substr(0, field.find('='));
    set_field(fault, text, field);
    if (!given.insert(name).second)
      throw_invalid_fault(
          text,
          fmt::format(
              "the field {} occurs twice: expected each field at most once, because the variable describes one fault",
              name));
    at = end + 1;
  }
  if (given.contains("of") && fault.kind != FaultKind::kFlip)
    throw_invalid_fault(text, "of=NAME is only for kind=flip");
  if (fault.is_permanent && fault.kind != FaultKind::kFlip)
    throw_invalid_fault(text, "times=always is only for kind=flip");
  if (!given.contains("kind")) throw_invalid_fault(text, "kind is missing");
  return fault;
}

/// Checks that the operation exists, and that a fault of this kind can happen at it.
void check(const InjectedFault& fault, std::string_view text, std::span<const FaultPoint> points) {
  std::vector<std::string_view> all, with_data;
  const auto add = [&](const FaultPoint& point) {
    all.push_back(point.name);
    if (std::ranges::find(point.data_kinds, fault.kind) != point.data_kinds.end()) with_data.push_back(point.name);
  };
  std::ranges::for_each(points, add);
  add({"save", {FaultKind::kFullDisk}});
  if (std::ranges::find(all, fault.operation) == all.end())
    throw_invalid_fault(text, fmt::format("op '{}' is not one of {}", fault.operation, fmt::join(all, ", ")));
  const bool needs_data =
      fault.kind == FaultKind::kNan || fault.kind == FaultKind::kFullDisk || fault.kind == FaultKind::kFlip;
  if (!needs_data || std::ranges::find(with_data, fault.operation) != with_data.end()) return;
  const auto kind = std::ranges::find(kKinds, fault.kind, [](const auto& each) { return each.second; });
  throw_invalid_fault(text, fmt::format("kind={} requires op={}", kind->first, fmt::join(with_data, " or op=")));
}

struct FaultText {
  std::string text;
  InjectedFault fault;
};

/// Reads the variable once. If it is invalid, every call parses it again and throws.
const FaultText* fault_from_environment() {
  static const std::optional<FaultText> fault = []() -> std::optional<FaultText> {
    const char* text = std::getenv("ALIQUOT_FAULT");
    if (text == nullptr || *text == '\0') return std::nullopt;
    return FaultText{text, parse(text)};
  }();
  return fault ? &*fault : nullptr;
}

}  // namespace

InjectedFault parse_injected_fault(std::string_view text, std::span<const FaultPoint> points) {
  InjectedFault fault = parse(text);
  check(fault, text, points);
  return fault;
}

const InjectedFault* injected_fault(std::span<const FaultPoint> points) {
  const FaultText* found = fault_from_environment();
  if (found == nullptr) return nullptr;
  check(found->fault, found->text, points);
  return &found->fault;
}

const InjectedFault* injected_fault(int rank, int64_t step, std::string_view operation) {
  const FaultText* found = fault_from_environment();
  if (found == nullptr) return nullptr;
  const InjectedFault& fault = found->fault;
  return fault.rank == rank && fault.step == step && fault.operation == operation ? &fault : nullptr;
}

void inject_fault(const InjectedFault& fault, std::string_view where) {
  if (fault.kind == FaultKind::kKill) std::raise(SIGKILL);
  if (fault.kind == FaultKind::kStop) std::raise(SIGSTOP);
  if (fault.kind == FaultKind::kSlow) std::this_thread::sleep_for(std::chrono::duration<double>(fault.seconds));
  if (fault.kind == FaultKind::kThrow)
    throw FaultError(fmt::format("ALIQUOT_FAULT made rank {} fail in {}", fault.rank, where));
}

}  // namespace aliquot
