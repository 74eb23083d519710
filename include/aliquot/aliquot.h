#pragma once
// Everything an engine's user needs: the world, the engine, its options and errors.

#include "engine/engine.h"
#include "engine/guard_range.h"
#include "engine/plan_line.h"
#include "kernels/error.h"
#include "kernels/log.h"
#include "optim/optimizer.h"
#include "sharding/world.h"
