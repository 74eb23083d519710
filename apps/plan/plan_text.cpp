#include "apps/plan/plan_text.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>

#include "apps/drawing/axis.h"
#include "apps/options/flag_names.h"
#include "apps/plan/pipeline_figures.h"
#include "apps/train/reporting/memory_table.h"
#include "engine/choose/budget.h"

namespace aliquot {
namespace {

/// Returns the name of the largest category at the peak, and its percentage of the peak.
std::string largest_categories_text(const Account& account) {
  const BytesByCategory& at_peak = account.at[static_cast<size_t>(account.peak_operation)];
  const auto most = std::ranges::max_element(at_peak);
  const auto category = static_cast<Category>(most - at_peak.begin());
  const double share = static_cast<double>(*most) / static_cast<double>(std::max<int64_t>(account.peak_bytes, 1));
  return fmt::format("{}, {:.0f} %", name(category), 100 * share);
}

std::string heading(const PlanOptions& o, const PlannedRun& outcome) {
  const std::string tensor = o.engine.tensor == 1 ? "" : fmt::format(" in tensor groups of {}", o.engine.tensor);
  return fmt::format("ZeRO stage {} on {} rank{}{}, {} parameters, {}\n", outcome.plan.schedule.zero_stage, o.ranks,
                     o.ranks == 1 ? "" : "s", tensor, outcome.parameters, outcome.plan.policy.precision.describe());
}

std::string seconds_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.4g} s", seconds);
}

/// One line for each pipeline stage. The lines printed above this table describe only the stage with the highest peak.
std::string stage_table(const PlannedRun& outcome) {
  constexpr std::string_view kRow = "  {:<14}{:>6}{:>12}{:>11}{:>13}{:>11}{:>11}{:>9}{:>11}{:>11}\n";
  const auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
  std::string text = fmt::format(kRow, "pipeline stage", "uses", "parameters", "peak", "in bytes", "in flight",
                                 "compute", "bubble", "transfers", "node link");
  for (const StageFigures& stage : stage_figures(outcome)) {
    text += fmt::format(kRow, stage.index, stage.use_count, count_text(static_cast<double>(stage.parameter_count)),
                        format_bytes(stage.peak_bytes), stage.peak_bytes, stage.activations_in_flight,
                        seconds_text(stage.compute_seconds), percent(stage.bubble_share), percent(stage.transfer_share),
                        percent(stage.node_link_share));
  }
  return text;
}

/// Returns a line with the simulated bubble of the whole pipeline and, if there is a formula, the bubble by this
/// formula.
std::string bubble_line(const PlannedRun& outcome) {
  const auto formula = bubble_formula(outcome.plan.policy);
  return fmt::format("  bubble of the pipeline: {:.1f} %{}\n", 100 * bubble_share(outcome),
                     formula ? fmt::format(", by the formula {}: {:.1f} %", formula->text, 100 * formula->share) : "");
}

/// Options that lower the memory of a rank and are not in use yet.
std::string memory_remedies(const PlanOptions& o, const PlannedRun& outcome) {
  const Policy& policy = outcome.plan.policy;
  std::vector<std::string> remedies;
  if (policy.zero_stage < 3 && o.ranks > 1) remedies.emplace_back("a higher --zero-stage");
  remedies.emplace_back("more --ranks");
  if (policy.recompute != kRecomputeAll && !o.params) remedies.emplace_back("--recompute block");
  if (o.micro_batch > 1 && !o.params) remedies.emplace_back("a smaller --micro-batch");
  if (policy.offload_state == Offload::kNone) remedies.emplace_back("--offload host");
  return fmt::format("{}", fmt::join(remedies, ", "));
}

std::string fit_lines(const PlanOptions& o, const PlannedRun& outcome) {
  if (!outcome.limit) return "";
  const std::string limit = fmt::format("{} of {}", format_bytes(outcome.limit->bytes), outcome.limit->source);
  if (outcome.fits()) return fmt::format("  fits in {}\n", limit);
  const std::string refusal = outcome.refusal.empty() ? "" : fmt::format("  {}\n", with_flag_names(outcome.refusal));
  return fmt::format("  does not fit in {}: a rank needs {}\n{}  to lower the memory: {}\n", limit,
                     format_bytes(outcome.rank_bytes()), refusal, memory_remedies(o, outcome));
}

std::string list(const PlanOptions& o, const PlannedRun& outcome) {
  const Account& account = outcome.account;
  std::string text = heading(o, outcome);
  for (int c = 0; c < kCategoryCount; ++c) {
    const int64_t bytes = account.peak[static_cast<std::size_t>(c)];
    if (bytes > 0)
      text += fmt::format("  {:<14}{:>18}  {}\n", name(static_cast<Category>(c)), bytes, format_bytes(bytes));
  }
  text += fmt::format("  {:<14}{:>18}  {}, {}{}\n", "peak", account.peak_bytes, format_bytes(account.peak_bytes),
                      account.peaks_between_steps() ? "" : "at ", peak_moment(outcome.plan, account));
  if (const int64_t elsewhere = account.elsewhere_bytes; elsewhere > 0)
    text +=
        fmt::format("  {:<14}{:>18}  {}, outside the rank's memory\n", "offloaded", elsewhere, format_bytes(elsewhere));
  text += fmt::format("  largest category at the peak: {}\n", largest_categories_text(account));
  text += fmt::format("  per step, a rank sends {} and receives {}\n", format_bytes(outcome.timeline.sent_bytes),
                      format_bytes(outcome.timeline.received_bytes));
  if (outcome.timeline.crossing_bytes > 0)
    text += fmt::format("  per step, a node sends {} to other nodes\n", format_bytes(outcome.timeline.crossing_bytes));
  if (tensor_groups_cross_nodes(outcome.plan.world, o.engine.tensor))
    text += "  warning: a tensor group spans several nodes; use a --tensor that divides --ranks-per-node\n";
  text += fit_lines(o, outcome);
  if (outcome.largest)
    text += fmt::format("  largest model that fits in {}: {} parameters\n", format_bytes(*o.device_memory),
                        *outcome.largest);
  if (outcome.stages.size() > 1) text += stage_table(outcome);
  if (is_timed(o, outcome)) {
    text +=
        fmt::format("  simulated on {}{}: {:.4g} s per step, {:.0f} % of communication hidden, {:.0f} tokens/s\n",
                    machine_name(o), outcome.fits() ? "" : " as if it had enough memory", outcome.timeline.step_seconds,
                    100 * outcome.timeline.hidden_share(), outcome.tokens / outcome.timeline.step_seconds);
  }
  if (outcome.stages.size() > 1) text += bubble_line(outcome);
  if (!outcome.plan.choice.empty()) text += fmt::format("  chosen: {}\n", with_flag_names(outcome.plan.choice));
  return text;
}

/// A table with one column for each ZeRO stage.
class Table {
 public:
  explicit Table(std::span<const PlannedRun> outcomes) : outcomes_(outcomes) {}

  void row(const std::string& what, const std::function<std::string(const PlannedRun&)>& cell) {
    constexpr size_t kWidth = 19;
    text += fmt::format("  {:<18}", what);
    for (const PlannedRun& outcome : outcomes_)
      text += fmt::format("{:>{}}", cell(outcome).substr(0, kWidth - 1), kWidth);
    text += "\n";
  }
  /// Adds a row of byte counts, unless all are 0.
  void bytes(const std::string& what, const std::function<int64_t(const PlannedRun&)>& bytes_of) {
    if (std::ranges::all_of(outcomes_, [&](const PlannedRun& outcome) { return bytes_of(outcome) == 0; })) return;
    row(what, [&](const PlannedRun& outcome) { return format_bytes(bytes_of(outcome)); });
  }
  std::string text;

 private:
  std::span<const PlannedRun> outcomes_;
};

void add_memory(Table& table) {
  for (size_t c = 0; c < kCategoryCount; ++c) {
    table.bytes(std::string(name(static_cast<Category>(c))),
                [c](const PlannedRun& outcome) { return outcome.account.peak[c]; });
  }
  table.bytes("peak", [](const PlannedRun& outcome) { return outcome.account.peak_bytes; });
  table.row("  in bytes", [](const PlannedRun& outcome) { return std::to_string(outcome.account.peak_bytes); });
  table.row("  at", [](const PlannedRun& outcome) { return peak_moment(outcome.plan, outcome.account); });
  table.row("  largest", [](const PlannedRun& outcome) { return largest_categories_text(outcome.account); });
  table.bytes("offloaded", [](const PlannedRun& outcome) { return outcome.account.elsewhere_bytes; });
}

void add_fit(Table& table, std::span<const PlannedRun> outcomes) {
  const std::optional<RankMemoryLimit>& limit = outcomes[0].limit;
  if (!limit) return;
  table.row("in " + format_bytes(limit->bytes),
            [](const PlannedRun& outcome) { return outcome.fits() ? "fits" : "does not fit"; });
}

/// Rows of the simulated step. Plans that do not fit have no values, because they cannot run.
void add_times(Table& table, std::span<const PlannedRun> outcomes) {
  const auto row = [&](const char* what, const std::function<std::string(const PlannedRun&)>& cell) {
    table.row(what, [&](const PlannedRun& outcome) { return outcome.fits() ? cell(outcome) : "-"; });
  };
  row("seconds per step",
      [](const PlannedRun& outcome) { return fmt::format("{:.4g}", outcome.timeline.step_seconds); });
  row("hidden traffic",
      [](const PlannedRun& outcome) { return fmt::format("{:.0f} %", 100 * outcome.timeline.hidden_share()); });
  if (outcomes[0].stages.size() > 1)
    row("bubble", [](const PlannedRun& outcome) { return fmt::format("{:.1f} %", 100 * bubble_share(outcome)); });
  row("tokens/s",
      [](const PlannedRun& outcome) { return fmt::format("{:.0f}", outcome.tokens / outcome.timeline.step_seconds); });
}

std::string comparison_table(const PlanOptions& o, std::span<const PlannedRun> outcomes) {
  Table table(outcomes);
  table.text = fmt::format("{} parameters on {} rank{}, {}; values per rank\n", outcomes[0].parameters, o.ranks,
                           o.ranks == 1 ? "" : "s", outcomes[0].plan.policy.precision.describe());
  table.row("",
            [](const PlannedRun& outcome) { return fmt::format("ZeRO stage {}", outcome.plan.schedule.zero_stage); });
  add_memory(table);
  table.bytes("sent per step", [](const PlannedRun& outcome) { return outcome.timeline.sent_bytes; });
  table.bytes("received per step", [](const PlannedRun& outcome) { return outcome.timeline.received_bytes; });
  table.bytes("sent by a node", [](const PlannedRun& outcome) { return outcome.timeline.crossing_bytes; });
  add_fit(table, outcomes);
  if (o.device_memory) {
    table.row("fits in " + format_bytes(*o.device_memory),
              [](const PlannedRun& outcome) { return std::to_string(*outcome.largest); });
  }
  if (outcomes[0].limit)
    table.text +=
        fmt::format("  a rank has {} of {}\n", format_bytes(outcomes[0].limit->bytes), outcomes[0].limit->source);
  if (std::ranges::none_of(outcomes, &PlannedRun::fits))
    table.text += fmt::format("  to lower the memory: {}\n", memory_remedies(o, outcomes.back()));
  if (!is_timed(o, outcomes[0])) return table.text;
  table.text += fmt::format("  simulated on {}\n", machine_name(o));
  add_times(table, outcomes);
  return table.text;
}

}  // namespace

int64_t PlannedRun::rank_bytes() const {
  int64_t most = 0;
  for (const Plan& stage : stages) most = std::max(most, aliquot::rank_bytes(stage));
  return most;
}

bool is_timed(const PlanOptions& options, const PlannedRun& outcome) {
  return !options.machine.empty() || outcome.stages.size() > 1;
}

std::string plan_text(const PlanOptions& options, std::span<const PlannedRun> outcomes) {
  std::string all = outcomes.size() == 1 ? list(options, outcomes[0]) : comparison_table(options, outcomes);
  if (options.schedule) {
    for (const PlannedRun& outcome : outcomes) {
      if (outcomes.size() > 1) all += fmt::format("\n{}", heading(options, outcome));
      for (const Plan& stage : outcome.stages) {
        all += outcome.stages.size() > 1 ? fmt::format("\npipeline stage {}\n", stage.stage.index) : "\n";
        all += text(stage);
      }
    }
  }
  return all + "\n";
}

}  // namespace aliquot
