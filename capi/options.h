#pragma once
// Options of worlds and engines, set by name and value as text.

#include <string_view>

#include "engine/options/common_options.h"

namespace aliquot::capi {

struct Options : CommonOptions {
  /// Throws UsageError for an unknown name, with the valid names in the message, and for an invalid value.
  void set(std::string_view name, std::string_view value);
  /// Returns the options of an engine. Throws UsageError if an option was set that the chosen optimizer does not use.
  EngineOptions engine_options() const;
};

}  // namespace aliquot::capi

struct aliquot_options {
  aliquot::capi::Options options;
};
