#include "apps/options/flag_names.h"

#include "engine/options/option_names.h"
#include "kernels/system/log.h"

namespace aliquot {

std::string with_flag_names(std::string_view message) {
  return with_option_names(message, [](std::string_view option) -> std::string {
    if (option == "check") return "ALIQUOT_CHECK";
    if (option == "cost") return "the cost model";
    return "--" + std::string(option);
  });
}

void log_with_flag_names(std::string_view message) noexcept {
  try {
    log_to_standard_error(with_flag_names(message));
  } catch (...) {  // out of memory
    log_to_standard_error(message);
  }
}

}  // namespace aliquot
