#pragma once
// The options that the command and the C interface share: a typed struct, and a table of option names.

#include <cstdint>
#include <optional>

#include "engine/options.h"
#include "engine/options/optimizer_options.h"
#include "engine/options/option_table.h"
#include "sharding/world.h"

namespace aliquot {

inline constexpr int64_t kMaxMicroBatches = 1 << 20;  // per step

struct CommonOptions {
  WorldOptions world;
  /// engine_options() replaces its compute precision, memory budget and optimizer by those in the members below.
  EngineOptions engine;
  std::optional<DType> precision;
  std::optional<int64_t> memory_budget;
  OptimizerOptions optimizer;

  /// Returns the options of the engine. Fields that are not set keep the default of EngineOptions.
  EngineOptions engine_options() const;
};

/// Makes a table that refers to `options`, which must outlive it and must not move.
OptionTable common_option_table(CommonOptions& options);

}  // namespace aliquot
