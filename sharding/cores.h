#pragma once
// The CPU cores on which a rank may run, and their NUMA node.

#include <string>
#include <string_view>
#include <vector>

namespace aliquot {

/// Element c of the result tells whether the calling thread may run on core c. Throws FaultError if the system call
/// fails.
std::vector<bool> allowed_cores();

/// The number of the NUMA node that contains all of `cores`. -1 if there is none, or if it is unknown. The cores of
/// each node are read from `folder`/node<number>/cpulist.
int numa_node_of(const std::vector<bool>& cores, const std::string& folder = "/sys/devices/system/node");

/// Parses a list such as "0-3,8" to 0, 1, 2, 3, 8. Stops at the first character that does not fit the format.
std::vector<int> parse_core_list(std::string_view text);

}  // namespace aliquot
