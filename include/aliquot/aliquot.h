#pragma once
// Everything an engine's user needs: the world, the engine, its options and errors.

#include "engine/engine.h"
#include "engine/plan/plan_line.h"
#include "engine/run/memory/guard_range.h"
#include "kernels/system/error.h"
#include "kernels/system/log.h"
#include "optim/optimizer.h"
#include "sharding/world.h"
