#pragma once
// The eight-bit codes of moments, for those who move state and know no optimizer.

#include <string_view>

#include "kernels/formats/block_code.h"

namespace aliquot {

/// How the state of that name (StateSpec::name) is kept in eight bits: "exp_avg" by the signed code of optim/update/dynamic_code.h,
/// "exp_avg_sq" by the unsigned one, null for any other. Lives as long as the program.
const BlockCode* moment_code(std::string_view state_name);

}  // namespace aliquot
