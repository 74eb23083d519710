#pragma once
// Converts the options of `aliquot train` into those of the library and of the model.

#include "apps/models/transformer.h"
#include "apps/options/train_options.h"
#include "engine/engine.h"
#include "optim/schedule.h"
#include "sharding/world.h"

namespace aliquot {

/// The memory that saving and loading need between steps.
int64_t between_steps_bytes(const TrainOptions& options);

// Except for world_options(), the functions below require options that resolve() has completed.

WorldOptions world_options(const TrainOptions& options);
EngineOptions engine_options(const TrainOptions& options);
RateSchedule rate_schedule(const TrainOptions& options);
ModelOptions model_options(const TrainOptions& options, int rank);

/// Throws UsageError on all ranks if an option differs between ranks, for example because a job consists of several
/// programs. Paths and options of a node, such as --threads, may differ. Collective.
void check_same_options(World& world, const TrainOptions& options);

}  // namespace aliquot
