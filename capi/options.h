#pragma once
// Names and values of text as the options of worlds and engines.

#include <string_view>

#include "capi/optimizer.h"
#include "engine/options.h"
#include "sharding/world.h"

namespace aliquot::capi {

struct Options {
  WorldOptions world;
  EngineOptions engine;
  OptimizerChoice optimizer;

  /// Throws UsageError for a name that is not known, listing those that are, and for a value that will not do.
  void set(std::string_view name, std::string_view value);
  EngineOptions engine_options() const;
};

}  // namespace aliquot::capi

struct aliquot_options {
  aliquot::capi::Options options;
};
