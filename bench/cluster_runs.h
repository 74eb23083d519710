#pragma once
// Training runs over nodes that scripts/cluster.sh emulates.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace aliquot {

/// A training configuration and the emulated nodes that it runs on.
struct ClusterCase {
  int nodes = 2, ranks_per_node = 1;
  std::string rate = "1gbit";
  std::string words;  // flags that `aliquot train` and `aliquot plan` both accept: model, ZeRO stage, ...

  int rank_count() const { return nodes * ranks_per_node; }
};

struct ClusterRun {
  std::vector<double> step_seconds;  // time of each step after the warm-up steps
  double tokens = 0;                 // number of tokens that all ranks together process in one step
  double hidden_share = 0;           // share of one step's communication time that is hidden under compute
  /// Bytes that the first node sent in the complete run, as the kernel counted them on its link.
  int64_t sent_bytes = 0;
};

/// Trains for `step_count` steps after the warm-up steps. Throws std::runtime_error if the run fails. If this machine
/// cannot emulate nodes, the message is the reason that scripts/cluster.sh prints.
ClusterRun run_on_cluster(const ClusterCase& what, int step_count);

/// Runs `aliquot plan --format json` for the case and returns the first plan.
nlohmann::json plan_of(const ClusterCase& what);

/// Runs a shell command and returns its standard output. Throws std::runtime_error if it fails.
std::string output_of(const std::string& command);

}  // namespace aliquot
