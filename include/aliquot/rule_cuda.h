#pragma once
// <aliquot/rule.h> for *.cu files: custom_cuda<Rule>() makes a user's optimizer run on GPUs too.

#include "optim/custom_rule_cuda.h"
