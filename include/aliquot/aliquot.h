#pragma once
// The main header: worlds, engines, options, optimizers and errors.

#include <aliquot/version.h>

#include "engine/engine.h"
#include "engine/plan/plan_line.h"
#include "engine/run/memory/guard_range.h"
#include "kernels/system/error.h"
#include "kernels/system/log.h"
#include "optim/optimizer.h"
#include "sharding/world.h"
