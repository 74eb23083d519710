#include "engine/policy.h"

#include <fmt/format.h>

namespace aliquot {

std::optional<int> recompute_count(std::string_view word) {
  if (word == "auto") return kRecomputeAsNeeded;
  if (word == "block") return kRecomputeAll;
  return word == "none" ? std::optional(0) : std::nullopt;
}

std::string Precision::describe() const {
  std::string text = fmt::format("{}, gradients {}", name(compute), name(gradients));
  if (sent() != gradients) text += fmt::format(" sent in {}", name(sent()));
  if (has_master()) text += split() ? ", split master" : ", fp32 master";
  return text;
}

}  // namespace aliquot
