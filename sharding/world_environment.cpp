// Detects the launcher from environment variables, and creates worlds that depend on the launcher.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <fmt/format.h>
#include <string_view>

#include "sharding/launcher.h"
#include "sharding/world.h"
#include "sharding/world_internal.h"

namespace aliquot {
namespace {

// Returns the number at the beginning of the text, or 0 if there is none.
int leading_int(std::string_view text) {
  int number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// Returns the value of the variable as a number, or 0 if it is not set or not a number.
int environment_int(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? 0 : leading_int(value);
}

bool is_set(const char* variable) { return std::getenv(variable) != nullptr; }

// Returns how many tasks srun started on a node of the step, according to a list such as "2(x3),1" for four nodes.
// Returns 0 if the list has no such node, or another format.
int tasks_on_node(std::string_view list, int node) {
  while (!list.empty()) {
    const std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), entry.size() + 1));
    const std::size_t times = entry.find("(x");
    const int tasks = leading_int(entry.substr(0, times));
    const int nodes = times == std::string_view::npos ? 1 : leading_int(entry.substr(times + 2));
    if (tasks <= 0 || nodes <= 0) return 0;
    if (node < nodes) return tasks;
    node -= nodes;
  }
  return 0;
}

LauncherInfo find_launcher() {
  constexpr std::array kSizes = {std::pair{"mpirun", "OMPI_COMM_WORLD_SIZE"},
                                 std::pair{"mpirun", "MV2_COMM_WORLD_SIZE"}, std::pair{"mpiexec", "PMI_SIZE"},
                                 std::pair{"srun", "SLURM_STEP_NUM_TASKS"}};
  // srun sets PMI_SIZE and SLURM_STEP_NUM_TASKS to the number of ranks. If mpiexec started its daemons with srun,
  // PMI_SIZE is the number of ranks and SLURM_STEP_NUM_TASKS the number of daemons.
  if (const int count = environment_int("PMI_SIZE"); count > 0 && count == environment_int("SLURM_STEP_NUM_TASKS"))
    return {"srun", count};
  for (const auto& [name, variable] : kSizes) {
    if (const int count = environment_int(variable); count > 0) return {std::string(name), count};
  }
  // SLURM also sets SLURM_NTASKS for batch scripts and for shells of an allocation, which srun did not start.
  const bool only_a_job = is_set("SLURM_JOB_ID") && !is_set("SLURM_STEP_ID") && !is_set("SLURM_STEPID");
  if (const int count = environment_int("SLURM_NTASKS"); count > 0 && !only_a_job) return {"srun", count};
  // Some launchers set the rank but not the number of processes, which is then available only from MPI.
  if (is_set("PMIX_RANK") || is_set("PMI_RANK"))
    return {"the launcher", 0, std::max(environment_int("PMIX_RANK"), environment_int("PMI_RANK")) + 1};
  return {};
}

}  // namespace

std::string LauncherInfo::text() const {
  if (process_count > 0) return fmt::format("{} started {} processes", by, process_count);
  return by + " started this process and possibly others";
}

StartedBy started_by() {
  const LauncherInfo launcher = find_launcher();
  if (launcher.process_count == 1) return StartedBy::kItself;
  return launcher.by == "srun" ? StartedBy::kSrun : StartedBy::kMpirun;
}

int launched_rank() noexcept {
  for (const char* variable :
       {"OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (is_set(variable)) return environment_int(variable);
  }
  return 0;
}

int launched_count_on_node() noexcept {
  for (const char* variable : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    if (is_set(variable)) return environment_int(variable);
  }
  const char* tasks = std::getenv("SLURM_STEP_TASKS_PER_NODE");
  if (tasks == nullptr || !is_set("SLURM_NODEID") || started_by() != StartedBy::kSrun) return 0;
  return tasks_on_node(tasks, environment_int("SLURM_NODEID"));
}

int launched_process_count() { return std::max(1, find_launcher().process_count); }

World World::from_environment(const WorldOptions& given) {
  const WorldOptions options = validated_options(given);
  const LauncherInfo launcher = find_launcher();
  const bool launched = launcher.process_count != 1;
  if (options.kind == WorldChoice::kThreads || options.make_device) {
    if (!launched) return make_single_rank_world(options);
    throw UsageError(
        fmt::format("{}, but a world of threads is one process: start the program without {}, or do not select threads",
                    launcher.text(), launcher.by));
  }
  if (!launched && options.kind == WorldChoice::kAuto) return make_single_rank_world(options);
  if (!launched && options.kind == WorldChoice::kNccl) return make_single_rank_world(options);
  return make_mpi_world(options, launcher);
}

void World::run(int rank_count, const std::function<void(World&)>& body, const WorldOptions& options) {
  const bool as_threads = find_launcher().process_count == 1 && options.kind != WorldChoice::kMpi;
  if (as_threads) return threads(rank_count, body, options);
  if (!body) throw UsageError("a world needs a function for its ranks to run");
  World world = from_environment(options);
  try {
    body(world);
  } catch (...) {
    abort_and_write_flight_record(world);
    throw;
  }
}

}  // namespace aliquot
