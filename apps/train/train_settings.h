#pragma once
// What the options mean to the rooms below.

#include "apps/models/transformer.h"
#include "apps/options/train_options.h"
#include "engine/engine.h"
#include "optim/schedule.h"
#include "sharding/world.h"

namespace aliquot {

// All of resolved options, but for world_options().

WorldOptions world_options(const TrainOptions& options);
EngineOptions engine_options(const TrainOptions& options);
RateSchedule rate_schedule(const TrainOptions& options);
ModelOptions model_options(const TrainOptions& options);

}  // namespace aliquot
