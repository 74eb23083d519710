#pragma once
// LibTorch modules, sharded: fully_shard(module, engine), and call(submodule, inputs...) in the module's forward. Headers
// alone, for whatever LibTorch a program uses, from 1.13 on; models on hosts.

#include "libtorch/call.h"
