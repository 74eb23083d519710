#pragma once
// <aliquot/rule.h> for *.cu files. custom_cuda<Rule>() compiles a user-defined optimizer for GPUs.

#include "optim/custom_rule_cuda.h"
