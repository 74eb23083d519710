#pragma once
// The tensors of a checkpoint, as `aliquot checkpoint show` prints them.

#include <string>
#include <vector>

#include "checkpoint/file/manifest.h"

namespace aliquot {

/// One line for each tensor: "parameters/h.0.ln_1.bias  float32 32".
std::vector<std::string> tensor_lines(const Manifest& manifest);

/// One line for tensors of the same type and shape whose paths differ only in the number of a layer or, for optimizer
/// state, in the last part: "optimizer/h.{0-11}.ln_1.bias/{exp_avg,exp_avg_sq}  float32 32  (24 tensors)".
std::vector<std::string> grouped_tensor_lines(const Manifest& manifest);

}  // namespace aliquot
