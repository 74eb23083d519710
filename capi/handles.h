#pragma once
// What the handles of <aliquot/c.h> point at.

#include <aliquot/c.h>
#include <memory>
#include <optional>

#include "engine/engine.h"
#include "sharding/world.h"

struct aliquot_world {
  aliquot::World* world;
  std::unique_ptr<aliquot::World> owned;  // null: a callback's, gone when that returns
};

struct aliquot_engine {
  aliquot_engine(aliquot::World& world, const aliquot::EngineOptions& options) : engine(world, options) {}

  aliquot::Engine engine;
  std::optional<aliquot::Scope> live;  // destroyed before the engine
  aliquot::StepReport report;

  /// Throws UsageError for a number that no unit has.
  aliquot::Unit& unit(int number);
};
