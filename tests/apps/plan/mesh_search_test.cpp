// Tests the search for a mesh: against all simulated choices, its bounds, memory limits, and its printed form.
#include "apps/plan/mesh_search.h"

#include <algorithm>
#include <chrono>
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "apps/plan/mesh_bound.h"
#include "apps/plan/mesh_table.h"
#include "apps/plan/planned_run.h"
#include "apps/train/mesh_choice.h"
#include "kernels/system/error.h"
#include "sharding/cores.h"
#include "tests/support/all_cases.h"
#include "tests/support/one_core.h"

namespace aliquot::test {
namespace {

/// The options of `aliquot plan`, and their machine.
struct SearchCase {
  PlanOptions options;
  Machine machine;

  explicit SearchCase(const std::vector<std::string>& arguments) {
    const OptionTable table = plan_option_table(options);
    const std::vector<GivenOption> given = read_arguments(table, arguments);
    set_options(table, given);
    apply_mesh(options.mesh, given, options.engine);
    machine = find_machine(machine_name(options));
    resolve_precision(options, machine.has_gpus);
  }
  SearchCase(const SearchCase&) = delete;
  SearchCase& operator=(const SearchCase&) = delete;

  MeshSearch search(const MeshSearchOptions& how) const { return search_meshes(options, machine, how); }
};

constexpr int kAll = 1000;

std::vector<std::string> words(std::vector<std::string> common, const std::vector<std::string>& more) {
  common.insert(common.end(), {"--mesh", "auto", "--threads", "1"});
  common.insert(common.end(), more.begin(), more.end());
  return common;
}

/// Small worlds in which all choices can be simulated: a tied and an untied model, hosts and GPUs, one and two nodes,
/// and memory that is ample, needs recompute, or suffices only for few meshes.
std::vector<std::vector<std::string>> small_worlds() {
  const std::vector<std::string> nano = {"--model", "gpt2-nano",      "--ranks", "8",         "--ranks-per-node",
                                         "4",       "--global-batch", "16",      "--machine", "host"};
  const std::vector<std::string> llama = {"--model",  "llama-nano", "--tied",         "off", "--ranks",   "16",
                                          "--layers", "6",          "--global-batch", "32",  "--machine", "dgx-h100"};
  const std::vector<std::string> twelve = {"--model",          "llama-nano", "--ranks",        "12",
                                           "--ranks-per-node", "6",          "--global-batch", "24",
                                           "--machine",        "dgx-a100",   "--zero-stage",   "3"};
  return {words(nano, {"--device-memory", "1GiB"}),
          words(nano, {"--device-memory", "6MB"}),
          words(llama, {"--device-memory", "1GiB"}),
          words(llama, {"--device-memory", "38MiB"}),
          words(llama, {"--device-memory", "36MiB"}),
          words(twelve, {"--device-memory", "1GiB"}),
          words(llama, {"--device-memory", "1GiB", "--micro-batch", "2", "--recompute", "block"})};
}

std::string text_of(const std::vector<std::string>& arguments) {
  return std::accumulate(arguments.begin(), arguments.end(), std::string(),
                         [](const std::string& all, const std::string& one) { return all + " " + one; });
}

/// Returns the result of a search that simulates all choices. Keeps it for later calls, because several tests need it.
const MeshSearch& simulate_all(const SearchCase& run, const std::vector<std::string>& arguments) {
  static std::map<std::vector<std::string>, MeshSearch> done;
  const auto found = done.find(arguments);
  if (found != done.end()) return found->second;
  return done.emplace(arguments, run.search({.count = kAll, .uses_bounds = false})).first->second;
}

TEST(MeshSearch, FindsWhatAllSimulationsFind) {
  test::CaseSelection selection(2);
  for (const auto& arguments : small_worlds()) {
    const SearchCase run(arguments);
    const MeshSearch& all = simulate_all(run, arguments);
    ASSERT_FALSE(all.best.empty()) << text_of(arguments);
    for (const int count : {1, 3, kAll}) {
      if (!selection.next()) continue;
      const MeshSearch found = run.search({.count = count});
      ASSERT_EQ(found.best.size(), std::min<std::size_t>(all.best.size(), count)) << text_of(arguments);
      for (std::size_t i = 0; i < found.best.size(); ++i) {
        EXPECT_EQ(found.best[i].seconds, all.best[i].seconds) << text_of(arguments) << " rank " << i;
        EXPECT_EQ(options_text(found.best[i].choice), options_text(all.best[i].choice)) << text_of(arguments);
      }
      EXPECT_LE(found.simulated, all.simulated);
    }
  }
}

void expect_bounds_below(const MeshSearch& all, const SearchCase& run, const std::string& text) {
  MeshBounds bounds(run.options, run.machine, *run.options.device_memory);
  for (const MeshResult& each : all.best) {
    const MeshBound bound = bounds.of(each.choice);
    EXPECT_LE(bound.seconds, each.seconds * (1 + 1e-9)) << text << ": " << options_text(each.choice);
    EXPECT_LE(bound.bytes, each.rank_bytes) << text << ": " << options_text(each.choice);
    EXPECT_GT(bound.seconds, 0);
  }
}

TEST(MeshSearch, BoundsAreBelowTheSimulation) {
  for (const auto& arguments : small_worlds()) {
    const SearchCase run(arguments);
    expect_bounds_below(simulate_all(run, arguments), run, text_of(arguments));
  }
}

/// Options that move data, or that remove traffic and memory.
TEST(MeshSearch, BoundsAreBelowTheSimulationWithOptions) {
  const std::vector<std::string> small = {
      "--model",        "llama-nano", "--layers",        "6",    "--ranks",       "8", "--machine", "dgx-h100",
      "--global-batch", "16",         "--device-memory", "1GiB", "--micro-batch", "1"};
  const std::vector<std::vector<std::string>> cases = {{"--lora", "rank=4"},
                                                       {"--offload", "host"},
                                                       {"--update-in-backward"},
                                                       {"--zero-stage", "3", "--prefetch", "4"},
                                                       {"--accumulate-into", "shard", "--tied", "on"}};
  for (const auto& more : cases) {
    const auto arguments = words(small, more);
    const SearchCase run(arguments);
    expect_bounds_below(simulate_all(run, arguments), run, text_of(more));
  }
  SearchCase uneven(words({"--model", "llama-nano", "--ranks", "4", "--machine", "host"},
                          {"--global-batch", "16", "--micro-batch", "1", "--device-memory", "1GiB"}));
  uneven.options.topology = Topology{.node_of_rank = {0, 1, 1, 1}, .gpu_of_rank = {-1, -1, -1, -1}};
  uneven.options.ranks_per_node = 3;
  const MeshSearch all = uneven.search({.count = kAll, .uses_bounds = false});
  expect_bounds_below(all, uneven, "nodes with 1 and 3 ranks");
}

/// The mesh that the search prints, planned with its options, needs the same memory and time, and fits.
TEST(MeshSearch, ChoicesFitAndAreThoseOfAPlan) {
  for (const auto& arguments : small_worlds()) {
    const SearchCase run(arguments);
    for (const MeshResult& each : run.search({.count = test::runs_all_cases() ? 4 : 2}).best) {
      const PlanOptions options = with_choice(run.options, each.choice);
      const PlannedRun planned = plan_run(options, run.machine, each.choice.zero_stage);
      EXPECT_EQ(planned.rank_bytes(), each.rank_bytes) << text_of(arguments) << ": " << options_text(each.choice);
      EXPECT_LE(planned.rank_bytes(), *run.options.device_memory);
      EXPECT_TRUE(planned.fits());
      double seconds = 0;
      for (const Timeline& timeline : planned.timelines) seconds = std::max(seconds, timeline.step_seconds);
      EXPECT_EQ(seconds, each.seconds) << options_text(each.choice);
      const StepShares& shares = each.shares;
      EXPECT_NEAR(shares.compute + shares.waits + shares.inside_node + shares.between_nodes, 1, 1e-9);
      for (const double share : {shares.compute, shares.waits, shares.inside_node, shares.between_nodes})
        EXPECT_GE(share, 0);
    }
  }
}

/// Steps with many micro-batches are extrapolated from steps with fewer.
TEST(MeshSearch, ExtrapolatesStepsWithManyMicroBatches) {
  const SearchCase run(words({"--model", "llama-8b", "--layers", "12", "--ranks", "8", "--machine", "dgx-h100"},
                             {"--global-batch", "96", "--micro-batch", "1", "--device-memory", "40GiB"}));
  int extrapolated = 0;
  test::CaseSelection selection(3);
  for (const MeshResult& each : run.search({.count = kAll}).best) {
    if (each.choice.accumulate < 32) continue;
    ++extrapolated;
    if (!selection.next()) continue;
    const PlannedRun planned = plan_run(with_choice(run.options, each.choice), run.machine, each.choice.zero_stage);
    const std::string text = options_text(each.choice);
    EXPECT_EQ(planned.rank_bytes(), each.rank_bytes) << text;
    EXPECT_TRUE(planned.fits()) << text;
    double seconds = 0, sent = 0;
    for (const Timeline& timeline : planned.timelines) {
      seconds = std::max(seconds, timeline.step_seconds);
      sent = std::max(sent, static_cast<double>(timeline.sent_bytes));
    }
    EXPECT_NEAR(each.seconds, seconds, 0.02 * seconds) << text;
    EXPECT_NEAR(static_cast<double>(each.sent_bytes), sent, 0.02 * sent) << text;
  }
  EXPECT_GE(extrapolated, 5);
}

/// The placement of buffers may need more memory with more micro-batches. If so, more uses are recomputed.
TEST(MeshSearch, ExtrapolatedStepsFit) {
  for (const char* limit : {"44000000", "12500000", "10.5MiB"}) {
    const SearchCase run(words({"--layers", "6", "--width", "128", "--heads", "4", "--ranks", "4"},
                               {"--global-batch", "128", "--micro-batch", "1", "--machine", "dgx-h100", "--pipeline",
                                "4", "--device-memory", limit}));
    const MeshSearch found = run.search({.count = kAll});
    for (const MeshResult& each : found.best) {
      const PlannedRun planned = plan_run(with_choice(run.options, each.choice), run.machine, each.choice.zero_stage);
      EXPECT_EQ(planned.rank_bytes(), each.rank_bytes) << options_text(each.choice);
      EXPECT_TRUE(planned.fits()) << options_text(each.choice);
    }
    EXPECT_TRUE(!found.best.empty() || found.smallest->rank_bytes > *run.options.device_memory) << limit;
  }
}

TEST(MeshSearch, KeepsTheOrderOfPassesWithoutAPipeline) {
  const SearchCase run(words({"--model", "gpt2-nano", "--ranks", "2", "--machine", "host"},
                             {"--micro-batch", "1", "--global-batch", "64", "--pipeline-schedule", "gpipe"}));
  for (const MeshResult& each : run.search({.count = kAll}).best)
    EXPECT_EQ(each.choice.schedule, PipelineSchedule::kGpipe) << options_text(each.choice);
}

TEST(MeshSearch, GivenVirtualStagesNeedAPipeline) {
  const SearchCase run(words({"--model", "gpt2-nano", "--ranks", "2", "--machine", "host"}, {"--virtual-stages", "2"}));
  const MeshSearch found = run.search({.count = kAll});
  ASSERT_FALSE(found.best.empty());
  for (const MeshResult& each : found.best) EXPECT_EQ(each.choice.mesh.pipeline, 2) << options_text(each.choice);
}

TEST(MeshSearch, KeepsTheGlobalBatchAndTheWorld) {
  const SearchCase run(words({"--model", "llama-nano", "--ranks", "8", "--machine", "dgx-h100"}, {}));
  for (const MeshResult& each : run.search({.count = kAll}).best) {
    const MeshChoice& choice = each.choice;
    EXPECT_EQ(choice.mesh.rank_count(), 8);
    EXPECT_EQ(choice.micro_batch * choice.accumulate * choice.data_ranks(), 32);
  }
}

TEST(MeshSearch, KeepsGivenOptions) {
  const SearchCase run(words({"--model", "llama-nano", "--ranks", "8", "--machine", "dgx-h100"},
                             {"--tensor", "2", "--pipeline", "2", "--zero-stage", "2", "--micro-batch", "1",
                              "--pipeline-schedule", "1f1b", "--recompute", "none"}));
  const MeshSearch found = run.search({.count = kAll});
  EXPECT_EQ(found.meshes, 2);
  for (const MeshResult& each : found.best) {
    const MeshChoice& choice = each.choice;
    EXPECT_EQ(choice.mesh.tensor, 2);
    EXPECT_EQ(choice.mesh.pipeline, 2);
    EXPECT_EQ(choice.zero_stage, 2);
    EXPECT_EQ(choice.micro_batch, 1);
    EXPECT_EQ(choice.recompute, 0);
    EXPECT_EQ(choice.schedule, PipelineSchedule::k1F1B);
  }
}

TEST(MeshSearch, SaysWhatTheSmallestMeshNeeds) {
  const SearchCase run(
      words({"--model", "llama-nano", "--ranks", "8", "--machine", "dgx-h100"}, {"--device-memory", "100KiB"}));
  const MeshSearch found = run.search({});
  ASSERT_TRUE(found.best.empty());
  ASSERT_TRUE(found.smallest);
  EXPECT_GT(found.smallest->rank_bytes, 100 << 10);
  EXPECT_NE(found.reason("dgx-h100").find("no mesh fits in 100 KiB of --device-memory: the smallest found needs "),
            std::string::npos)
      << found.reason("dgx-h100");
}

/// The nodes of a world may have different numbers of ranks.
TEST(MeshSearch, TensorGroupsAreOnOneNode) {
  const auto most_tensor = [](const std::vector<int>& nodes) {
    SearchCase run(words({"--model", "llama-nano", "--ranks", "4", "--machine", "host"}, {"--global-batch", "16"}));
    run.options.topology = Topology{.node_of_rank = nodes, .gpu_of_rank = std::vector<int>(nodes.size(), -1)};
    run.options.ranks_per_node = 3;
    int most = 0;
    for (const MeshChoice& choice : mesh_choices(run.options, 6, false)) most = std::max(most, choice.mesh.tensor);
    return most;
  };
  EXPECT_EQ(most_tensor({0, 0, 0, 0}), 4);
  EXPECT_EQ(most_tensor({0, 0, 1, 1}), 2);
  EXPECT_EQ(most_tensor({0, 0, 0, 1}), 1);
  EXPECT_EQ(most_tensor({0, 1, 1, 1}), 1);
}

TEST(MeshSearch, RefusesAGlobalBatchThatNoMeshDivides) {
  const SearchCase run(words({"--model", "llama-nano", "--layers", "1", "--ranks", "64", "--ranks-per-node", "1"},
                             {"--global-batch", "3", "--machine", "dgx-h100"}));
  EXPECT_THROW(run.search({}), UsageError);
  const SearchCase params({"--params", "1m", "--ranks", "8", "--mesh", "auto"});
  EXPECT_THROW(params.search({}), UsageError);
}

TEST(MeshSearch, ResultsDoNotDependOnThreads) {
  test::CaseSelection selection(2);
  for (const auto& arguments : small_worlds()) {
    if (!selection.next()) continue;
    const SearchCase run(arguments);
    const MeshSearch one = run.search({.count = 4, .threads = 1}), four = run.search({.count = 4, .threads = 4});
    EXPECT_EQ(mesh_json(one), mesh_json(four)) << text_of(arguments);
  }
}

/// Gives some options, so that the search is short also with sanitizers. The bound on time is generous, because other
/// programs may run on the machine.
TEST(MeshSearch, SearchesSixteenThousandRanks) {
  const SearchCase run(words({"--model", "llama-405b", "--ranks", "16384", "--machine", "dgx-h100"},
                             {"--global-batch", "2048", "--device-memory", "80GiB", "--tensor", "8", "--zero-stage",
                              "1", "--micro-batch", "1", "--virtual-stages", "4", "--recompute", "none"}));
  const auto began = std::chrono::steady_clock::now();
  const MeshSearch found = run.search({.count = 1});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  ASSERT_FALSE(found.best.empty());
  EXPECT_LE(found.best.front().rank_bytes, int64_t{80} << 30);
  EXPECT_EQ(found.best.front().choice.mesh.pipeline, 16);
  EXPECT_GT(found.meshes, 20);
  EXPECT_LT(found.simulated, found.choices);
  EXPECT_LT(seconds, 120) << "planned " << found.planned << " of " << found.choices;
}

/// The search plans the buffers of as many threads as the world has, for example if taskset limits the process.
TEST(MeshSearch, PlansTheThreadsOfTheWorld) {
  const auto planned_threads = [](int threads_per_rank) {
    int count = 0;
    const auto body = [&count](World& world) { count = plan_options(world, TrainOptions()).world.threads_per_rank; };
    World::threads(1, body, {.device = DeviceChoice::kHost, .threads_per_rank = threads_per_rank});
    return count;
  };
  EXPECT_EQ(planned_threads(0), allowed_core_count());
  EXPECT_EQ(planned_threads(5), 5);
  const OneCore bound;
  EXPECT_EQ(planned_threads(0), 1);
}

}  // namespace
}  // namespace aliquot::test
