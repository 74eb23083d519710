#pragma once
// Definitions of the handle types of <aliquot/c.h>.

#include <aliquot/c.h>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "engine/engine.h"
#include "sharding/state.h"
#include "sharding/world.h"

struct aliquot_world {
  aliquot::World* world;
  std::unique_ptr<aliquot::World> owned;  // null if aliquot_world_threads() or aliquot_world_run() owns the world
};

namespace aliquot::capi {
inline aliquot_use_memory use_memory(const UseMemory& memory) {
  return {memory.use,
          memory.input,
          memory.output,
          memory.kept,
          memory.scratch,
          memory.backward,
          memory.recomputed ? 1 : 0,
          memory.weight_inputs};
}
}  // namespace aliquot::capi

struct aliquot_engine {
  aliquot_engine(aliquot::World& world, const aliquot::EngineOptions& options) : engine(world, options) {}

  aliquot::Engine engine;
  std::optional<aliquot::Scope> open_scope;        // destroyed before the engine
  const aliquot::UseMemory* recomputed = nullptr;  // of the use that the recompute callback repeats
  std::map<std::string, aliquot::Scalar> scalars;  // of the program; the engine's own are not among them
  aliquot::StepReport report;  // report of the last step; owns the string to which the C report points

  /// Throws UsageError if no unit has this number.
  aliquot::Unit& unit(int number);
};
