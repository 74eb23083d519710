#pragma once
// The CPU cores on which a rank may run, and their NUMA node.

#include <string>
#include <string_view>
#include <vector>

namespace aliquot {

/// Returns the cores on which the calling thread may run: element c is true if core c is one of them. Throws FaultError
/// if the system call fails.
std::vector<bool> allowed_cores();

/// Returns the number of these cores, at least 1.
int allowed_core_count();

/// Returns the number of cores to which a thread of this process may be bound: those of its cpuset, for example of a
/// container or of a Slurm job. Returns the cores of the machine if the system does not tell.
int cpuset_core_count();

/// Returns the index of the NUMA node that contains all of `cores`, or -1 if no known NUMA node does. Reads the cores
/// of each NUMA node from `folder`/node<index>/cpulist.
int numa_node_of(const std::vector<bool>& cores, const std::string& folder = "/sys/devices/system/node");

/// The numbers from which the share of a core is computed, on one node.
struct CoreUse {
  int own_core_count = 0;     // cores on which this rank may run
  int cpuset_core_count = 0;  // cores for the processes of the launcher; 0: unknown
  int rank_count = 0;         // ranks of the group
  int launched_count = 0;     // processes of the launcher; 0: unknown
};

/// Returns how many ranks outside of the group run on each core of this rank, on average. Returns 0 if this rank has at
/// most an equal share of the cores, because the launcher then bound the other ranks to other cores.
double outside_ranks_per_core(const CoreUse& use);

/// Returns the number of cores for a rank that may run on the cores `own`. If k ranks of the node may run on a core,
/// each of them counts 1/k of that core. `group` has the cores of each rank of the group on this node, including this
/// rank. The group may be a part of the `launched_count` processes of the launcher on this node (0: unknown).
double share_of_cores(const std::vector<bool>& own, const std::vector<std::vector<bool>>& group, int cpuset_core_count,
                      int launched_count);

/// Parses a list of cores: "0-3,8" results in 0, 1, 2, 3, 8. Stops at the first character that does not match the
/// format.
std::vector<int> parse_core_list(std::string_view text);

}  // namespace aliquot
