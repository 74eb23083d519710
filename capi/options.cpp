#include "capi/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capi/status.h"
#include "engine/options/nearest.h"

namespace aliquot::capi {

void Options::set(std::string_view name, std::string_view value) {
  const OptionTable table = common_option_table(*this);
  const Option* option = table.find(name);
  if (option == nullptr)
    throw UsageError(fmt::format("unknown option \"{}\": valid options are {}.{}", name, fmt::join(table.names(), ", "),
                                 did_you_mean(name, table.names(), "")));
  try {
    option->set(value);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("the option {}: {}", name, error.what()));
  }
}

EngineOptions Options::engine_options() const {
  refuse_unused(optimizer);
  return CommonOptions::engine_options();
}

}  // namespace aliquot::capi

using aliquot::capi::catch_as_status;
using aliquot::capi::require_not_null;

int aliquot_options_create(aliquot_options** options) {
  return catch_as_status([&] { require_not_null(options, "options") = new aliquot_options; });
}

int aliquot_options_set(aliquot_options* options, const char* name, const char* value) {
  return catch_as_status([&] {
    require_not_null(options, "options")
        .options.set(&require_not_null(name, "name"), &require_not_null(value, "value"));
  });
}

void aliquot_options_free(aliquot_options* options) { delete options; }
