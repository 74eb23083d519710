#pragma once
// The processor's cores that a rank may run on, and where they are.

#include <string>
#include <string_view>
#include <vector>

namespace aliquot {

/// By core, whether the calling thread may run on it. Throws FaultError if the system does not say.
std::vector<bool> allowed_cores();

/// The number of the NUMA node that all of `cores` belong to; -1 if they are spread over several, or if the system does
/// not say: each `folder`/node<number>/cpulist names a node's cores.
int numa_node_of(const std::vector<bool>& cores, const std::string& folder = "/sys/devices/system/node");

/// "0-3,8" is 0, 1, 2, 3, 8. What cannot be read as such is left out.
std::vector<int> parse_core_list(std::string_view text);

}  // namespace aliquot
