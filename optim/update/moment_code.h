#pragma once
#include <string_view>

#include "kernels/formats/block_code.h"

namespace aliquot {

/// Returns the 8-bit code of the state named `state_name` (StateSpec::name), for code that saves and loads state.
/// "exp_avg" has the signed and "exp_avg_sq" the unsigned code of optim/update/dynamic_code.h. Null for other names.
/// Has static lifetime.
const BlockCode* moment_code(std::string_view state_name);

}  // namespace aliquot
