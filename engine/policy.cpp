#include "engine/policy.h"

#include <fmt/format.h>

namespace aliquot {

std::string Precision::describe() const {
  std::string text = fmt::format("{}, gradients {}", name(compute), name(gradients));
  if (sent() != gradients) text += fmt::format(" sent in {}", name(sent()));
  if (has_master()) text += split() ? ", split master" : ", fp32 master";
  return text;
}

}  // namespace aliquot
