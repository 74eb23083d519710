// aliquot plan: predicts memory, traffic and step time of a run, without running it.
#include <algorithm>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/options/products_option.h"
#include "apps/options/train_options.h"
#include "apps/plan/machine.h"
#include "apps/plan/mesh_search.h"
#include "apps/plan/mesh_table.h"
#include "apps/plan/plan_json.h"
#include "apps/plan/plan_options.h"
#include "apps/plan/plan_text.h"
#include "apps/plan/planned_run.h"
#include "engine/cost/trace.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

void write_trace_file(const PlanOptions& o, const PlannedRun& outcome) {
  std::ofstream file(o.trace);
  write_trace(file, simulated_traces(outcome));
  if (!file.flush()) throw UsageError("--trace " + o.trace + ": the file could not be written.");
}

void write_order_file(const PlanOptions& o, const PlannedRun& outcome) {
  std::ofstream file(o.pipeline_order);
  file << text(pass_order_of(outcome.plan.policy));
  if (!file.flush()) throw UsageError("--pipeline-order " + o.pipeline_order + ": the file could not be written.");
}

/// Sets the mesh, the number of micro-batches, and what depends on --mesh.
void resolve_mesh(PlanOptions& o, const std::vector<GivenOption>& given) {
  apply_mesh(o.mesh, given, o.engine);
  if (o.mesh.given) o.ranks = o.mesh.given->rank_count();
  if (o.mesh.automatic || !o.global_batch) return;
  o.engine.accumulate = accumulate_for(*o.global_batch, o.engine, static_cast<int>(o.ranks), o.micro_batch);
}

/// Throws UsageError if an option of `given` needs one plan, but --mesh auto compares many.
void check_mesh_search(const PlanOptions& o, const std::vector<GivenOption>& given) {
  for (const std::string_view name : {"stages", "schedule", "pipeline-order", "trace", "metrics"}) {
    const auto found = std::ranges::find(given, name, &GivenOption::name);
    if (o.mesh.automatic && found != given.end())
      throw UsageError(fmt::format(
          "{} needs one plan, and --mesh auto compares several: use the --mesh that it prints.", found->where));
  }
}

int plan_meshes(const PlanOptions& o, const Machine& machine) {
  constexpr int kCount = 8;
  const MeshSearch search = search_meshes(o, machine, {.count = kCount});
  if (o.format == "text") write_stream(stdout, mesh_table(o, search));
  if (o.format == "json") write_stdout("{}\n", Json{{"meshes", mesh_json(search)}}.dump(2));
  if (o.format == "csv" && !search.best.empty()) write_stream(stdout, plan_csv(mesh_json(search)));
  if (!search.best.empty()) return 0;
  if (o.format != "text") warn("{}.", search.reason(machine_name(o)));
  return static_cast<int>(ExitCode::kUnavailable);
}

}  // namespace

CommandHelp plan_help() {
  PlanOptions options;
  return {.name = "plan",
          .summary = "predict memory, traffic and step time of a run, without running it",
          .usage = "[--option value ...]",
          .text =
              "Predicts the memory of a rank by category and its traffic per step. With --machine or --pipeline, "
              "also simulates the time of a step. States whether a rank has enough memory: that of the GPUs or hosts "
              "of --machine or, by default, of this machine. Does not train. Counts the activations of the built-in "
              "models, "
              "for GPUs if --machine has GPUs and otherwise for a host. With --params the activations are unknown "
              "and not counted.",
          .options = help_options(plan_option_table(options)),
          .subcommands = {},
          .exit_codes = {0, 1, 2, 3}};
}

int run_plan(const Arguments& arguments) {
  PlanOptions options;
  const OptionTable table = plan_option_table(options);
  std::vector<GivenOption> given = read_arguments(table, arguments);
  remove_replaced_by_mesh(given);
  set_options(table, given);
  resolve_mesh(options, given);
  check_mesh_search(options, given);
  check_tensor_options(options);
  const auto rows = std::ranges::find(given, "sequence-parallel", &GivenOption::name);
  if (rows != given.end() && options.engine.tensor == 1 && !options.mesh.automatic)
    warn("{} has no effect without --tensor.", rows->where);
  const Machine machine = find_machine(machine_name(options));
  resolve_precision(options, machine.has_gpus);
  check_products(options.products, options, machine.has_gpus, "a --machine with GPUs");
  if (options.mesh.automatic) return plan_meshes(options, machine);
  std::vector<Json> plans;
  std::vector<PlannedRun> outcomes;
  for (const int stage : stages_of(options)) {
    outcomes.push_back(plan_run(options, machine, stage));
    plans.push_back(plan_json(options, outcomes.back()));
  }
  if (options.format == "text") write_stream(stdout, plan_text(options, outcomes));
  if (options.format == "json") write_stdout("{}\n", Json{{"plans", plans}}.dump(2));
  if (options.format == "csv") write_stream(stdout, plan_csv(plans));
  if (!options.pipeline_order.empty()) write_order_file(options, outcomes.back());
  if (!options.trace.empty()) write_trace_file(options, outcomes.back());
  if (!options.metrics.empty()) write_plan_metrics(options, outcomes);
  return 0;
}

}  // namespace aliquot
