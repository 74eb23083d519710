#pragma once
// Saving and loading an engine's state: aliquot::save(engine.state(), ...), aliquot::load(...).

#include "checkpoint/load.h"
#include "checkpoint/save.h"
