#include "bench/cluster_runs.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>

namespace aliquot {
namespace {

using Json = nlohmann::json;

constexpr int kWarmUp = 2;
constexpr int kSkipExitCode = 77;  // exit code of scripts/cluster.sh if this machine cannot emulate nodes

/// A temporary file, removed by the destructor.
struct Scratch {
  explicit Scratch(const std::string& name)
      : path(std::filesystem::temp_directory_path() / fmt::format("aliquot-bench-{}-{}", getpid(), name)) {
    std::filesystem::remove(path);
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::filesystem::path path;
};

void read_metrics(const std::filesystem::path& path, ClusterRun& run) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line);
    if (json.contains("step") && json["step"] > kWarmUp) run.step_seconds.push_back(json["step_seconds"]);
    if (json.contains("step")) run.tokens = json["tokens"];
    if (json.contains("done") && json["done"]["step"].is_object())
      run.hidden_share = json["done"]["step"]["hidden_share"];
  }
  if (run.step_seconds.empty())
    throw std::runtime_error(fmt::format("{} has no step after the {} warm-up steps", path.string(), kWarmUp));
}

/// Reads SENT from the second line, "node0,SENT,RECEIVED", of the file that scripts/cluster.sh --traffic has written.
int64_t sent_by_first_node(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  std::getline(file, line);
  return std::stoll(line.substr(line.find(',') + 1));
}

}  // namespace

std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot start the command: " + command);
  std::string output;
  std::array<char, 4096> part;
  while (std::fgets(part.data(), static_cast<int>(part.size()), pipe) != nullptr) output += part.data();
  const int status = pclose(pipe);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kSkipExitCode) throw std::runtime_error(output);
  if (status != 0) throw std::runtime_error(fmt::format("the command failed with wait status {}: {}", status, command));
  return output;
}

ClusterRun run_on_cluster(const ClusterCase& what, int step_count) {
  const Scratch metrics("metrics"), traffic("traffic");
  // Keep Open MPI's daemons in the Unix session of this process, because the kernel divides processor time among
  // Unix sessions.
  output_of(
      fmt::format("OMPI_MCA_orte_leave_session_attached=1 {} --nodes {} --ranks-per-node {} --rate {} --traffic {} "
                  "{} train --threads 1 --quiet --steps {} --metrics {} {} 2>&1",
                  ALIQUOT_BENCH_CLUSTER, what.nodes, what.ranks_per_node, what.rate, traffic.path.string(),
                  ALIQUOT_BENCH_PROGRAM, step_count + kWarmUp, metrics.path.string(), what.words));
  ClusterRun run;
  read_metrics(metrics.path, run);
  run.sent_bytes = sent_by_first_node(traffic.path);
  return run;
}

Json plan_of(const ClusterCase& what) {
  const std::string text =
      output_of(fmt::format("{} plan --format json --ranks {} --ranks-per-node {} {}", ALIQUOT_BENCH_PROGRAM,
                            what.rank_count(), what.ranks_per_node, what.words));
  return Json::parse(text)["plans"][0];
}

}  // namespace aliquot
