#pragma once
// Which ranks the others waited for, in words.

#include <string>

#include "apps/explain/evidence.h"

namespace aliquot {

/// Who never came to what others waited in, or came late, or waits for one another; nothing where nobody waited. Where the
/// launcher ended all ranks that left a record nobody is blamed but who left none: a rank that is ended in the middle of a
/// step has not come somewhere either. Only waits are told then that were long before.
std::string missing_ranks(const Evidence& evidence);

}  // namespace aliquot
