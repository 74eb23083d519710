#pragma once
// Embeddings, losses and norms that the ranks of a tensor group divide, for hosts and GPUs.

#include "kernels/layers/split_layers.h"
