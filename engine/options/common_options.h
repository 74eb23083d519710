#pragma once
// The options that the command and the C interface share: one typed struct, and one table of what each accepts.

#include <cstdint>
#include <optional>

#include "engine/options.h"
#include "engine/options/optimizer_options.h"
#include "engine/options/option_table.h"
#include "sharding/world.h"

namespace aliquot {

inline constexpr int64_t kMaxMicroBatches = 1 << 20;  // a step

struct CommonOptions {
  WorldOptions world;
  EngineOptions engine;  // except for what follows
  std::optional<DType> precision;
  std::optional<int64_t> memory_budget;
  OptimizerOptions optimizer;

  /// All of them together. What is unset takes the default of EngineOptions.
  EngineOptions engine_options() const;
};

/// Bound to `options`, which must outlive the table and stay where it is.
OptionTable common_option_table(CommonOptions& options);

}  // namespace aliquot
