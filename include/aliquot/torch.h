#pragma once
// Sharding of LibTorch modules: fully_shard(module, engine), and call(submodule, inputs...) in the module's forward.
// Header-only, for LibTorch 1.13 or later. Models must be on the CPU.

#include "libtorch/call.h"
