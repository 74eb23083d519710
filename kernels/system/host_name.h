#pragma once
// The name of this machine, for messages.

#include <string>

namespace aliquot {

/// Returns the host name, or "" if the system does not tell it.
std::string host_name();

}  // namespace aliquot
