#pragma once
// Saving and loading an engine's state: aliquot::save(engine.state(), ...), aliquot::load(...); BackgroundSaver saves while
// training goes on, load_weights() takes the weights of other programs.

#include "checkpoint/background_saver.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/weights/load_weights.h"
