#pragma once
// Checkpoints. save() and load() save and load the state of an engine. BackgroundSaver saves while training continues.
// load_weights() loads weights of other programs.

#include "checkpoint/background_saver.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/weights/load_weights.h"
