#pragma once
// Names and values of text as the options of worlds and engines.

#include <string_view>

#include "engine/options/common_options.h"

namespace aliquot::capi {

struct Options : CommonOptions {
  /// Throws UsageError for a name that is not known, listing those that are, and for a value that is not accepted.
  void set(std::string_view name, std::string_view value);
  /// Throws UsageError for a number that the optimizer does not have.
  EngineOptions engine_options() const;
};

}  // namespace aliquot::capi

struct aliquot_options {
  aliquot::capi::Options options;
};
