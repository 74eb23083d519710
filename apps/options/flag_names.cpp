#include "apps/options/flag_names.h"

#include <algorithm>
#include <array>

#include "kernels/system/log.h"

namespace aliquot {
namespace {

struct FieldFlag {
  std::string_view field, flag;
};

/// Fields whose flag is not the name of the field with dashes, and fields without a flag.
constexpr std::array kFlags{
    FieldFlag{"offload_state", "--offload"},
    FieldFlag{"offload_state_to", "--offload disk:DIR"},
    FieldFlag{"offload_parameters_to", "--offload-parameters disk:DIR"},
    FieldFlag{"quantize_weights", "--quantize weights"},
    FieldFlag{"quantize_gradients", "--quantize gradients"},
    FieldFlag{"memory_budget_bytes", "--memory-budget"},
    FieldFlag{"precision", "--precision"},
    FieldFlag{"precision.compute", "--precision"},
    FieldFlag{"precision.gradients", "--gradients"},
    FieldFlag{"precision.reduce", "--reduce-precision"},
    FieldFlag{"precision.master", "--master"},
    FieldFlag{"moments", "--state"},
    FieldFlag{"check", "ALIQUOT_CHECK"},
    FieldFlag{"cost", "the cost model"},
};

std::string flag_of(std::string_view field) {
  const auto found = std::ranges::find(kFlags, field, &FieldFlag::field);
  if (found != kFlags.end()) return std::string(found->flag);
  std::string flag = "--" + std::string(field);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

}  // namespace

std::string with_flag_names(std::string_view message) {
  constexpr std::string_view kOwner = "EngineOptions::", kNameLetters = "abcdefghijklmnopqrstuvwxyz_.";
  std::string text;
  for (auto at = message.find(kOwner); at != std::string_view::npos; at = message.find(kOwner)) {
    text += message.substr(0, at);
    message.remove_prefix(at + kOwner.size());
    std::string_view field = message.substr(0, message.find_first_not_of(kNameLetters));
    message.remove_prefix(field.size());
    // A period that ends the sentence is not part of the name.
    const bool ends_sentence = field.ends_with('.');
    if (ends_sentence) field.remove_suffix(1);
    text += flag_of(field);
    if (ends_sentence) text += '.';
  }
  return text.append(message);
}

void log_with_flag_names(std::string_view message) noexcept {
  try {
    log_to_standard_error(with_flag_names(message));
  } catch (...) {  // out of memory
    log_to_standard_error(message);
  }
}

}  // namespace aliquot
