#pragma once
// An optimizer of the user's own: a struct with its update of one element, handed to aliquot::custom_optimizer().

#include "optim/custom_rule.h"
