#include "engine/options/option_names.h"

#include <algorithm>
#include <array>

namespace aliquot {
namespace {

struct FieldOption {
  std::string_view field, option;
};

/// The fields whose option has a different name. Every other option has the name of its field, with dashes in place of
/// underscores.
constexpr std::array kOptions{
    FieldOption{"EngineOptions::pass_order", "pipeline-order-from"},
    FieldOption{"EngineOptions::offload_state", "offload"},
    FieldOption{"EngineOptions::offload_state_to", "offload disk:DIR"},
    FieldOption{"EngineOptions::offload_parameters_to", "offload-parameters disk:DIR"},
    FieldOption{"EngineOptions::quantize_weights", "quantize weights"},
    FieldOption{"EngineOptions::quantize_gradients", "quantize gradients"},
    FieldOption{"EngineOptions::memory_budget_bytes", "memory-budget"},
    FieldOption{"EngineOptions::precision.compute", "precision"},
    FieldOption{"EngineOptions::precision.gradients", "gradients"},
    FieldOption{"EngineOptions::precision.reduce", "reduce-precision"},
    FieldOption{"EngineOptions::precision.master", "master"},
    FieldOption{"EngineOptions::moments", "state"},
    FieldOption{"WorldOptions::kind", "world"},
    FieldOption{"WorldOptions::threads_per_rank", "threads"},
    FieldOption{"WorldOptions::timeout_seconds", "timeout"},
};

std::string option_of(std::string_view qualified) {
  const auto found = std::ranges::find(kOptions, qualified, &FieldOption::field);
  if (found != kOptions.end()) return std::string(found->option);
  std::string option(qualified.substr(qualified.rfind(':') + 1));
  std::ranges::replace(option, '_', '-');
  return option;
}

}  // namespace

std::string with_option_names(std::string_view message, const std::function<std::string(std::string_view)>& spell) {
  constexpr std::string_view kOwners[] = {"EngineOptions::", "WorldOptions::"};
  constexpr std::string_view kNameLetters = "abcdefghijklmnopqrstuvwxyz_.";
  std::string text;
  while (true) {
    auto begin = std::string_view::npos;
    std::string_view owner;
    for (const std::string_view each : kOwners) {
      if (const auto at = message.find(each); at < begin) {
        begin = at;
        owner = each;
      }
    }
    if (begin == std::string_view::npos) return text.append(message);
    const auto end = std::min(message.find_first_not_of(kNameLetters, begin + owner.size()), message.size());
    // A period that ends the sentence is not part of the name.
    const auto name_end = message[end - 1] == '.' ? end - 1 : end;
    text += message.substr(0, begin);
    text += spell(option_of(message.substr(begin, name_end - begin)));
    message.remove_prefix(name_end);
  }
}

}  // namespace aliquot
