#pragma once
// Training runs over nodes that scripts/cluster.sh emulates.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace aliquot {

/// What is run, and where.
struct ClusterCase {
  int nodes = 2, ranks_per_node = 1;
  std::string rate = "1gbit";
  std::string words;  // of `aliquot train` and of `aliquot plan` alike: the model, the stage, ...

  int rank_count() const { return nodes * ranks_per_node; }
};

struct ClusterRun {
  std::vector<double> step_seconds;  // after those that warm up
  double tokens = 0;                 // of a step, of all ranks
  double hidden_share = 0;           // of one step's communication
  int64_t sent_bytes = 0;            // by the first node in all the run, as the kernel counted on its link
};

/// Throws std::runtime_error, with what the machine lacks where it cannot emulate nodes.
ClusterRun run_on_cluster(const ClusterCase& what, int step_count);

/// What the program says of the case, with --format json: the first plan. `more`: further options.
nlohmann::json plan_of(const ClusterCase& what, const std::string& more = "");

/// What a shell command prints. Throws std::runtime_error where it fails.
std::string output_of(const std::string& command);

}  // namespace aliquot
