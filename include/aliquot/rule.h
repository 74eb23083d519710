#pragma once
// User-defined optimizers: pass a struct that updates one element to aliquot::custom_optimizer().

#include "optim/custom_rule.h"
