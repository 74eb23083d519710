// aliquot doctor: what this build and this machine offer.
#include <filesystem>
#include <fmt/format.h>

#include "apps/commands.h"
#include "apps/machine_rates.h"
#include "apps/machine_report.h"
#include "apps/options/option_table.h"
#include "apps/plan/machine.h"
#include "checkpoint/export_weights.h"
#include "kernels/error.h"

namespace aliquot {
namespace {

constexpr std::string_view kHelp =
    "aliquot doctor [--measure FILE]\n\n"
    "  Says what this build and this machine offer: cores, memory, vector loops, GPUs, MPI, links; what is missing, "
    "and\n"
    "  what would add it.\n\n";

void show_machine() {
  const MachineReport report = report_machine();
  for (const auto& [what, text] : report.lines) fmt::print("{:<9} {}\n", what, text);
  if (report.missing.empty()) fmt::print("missing   nothing\n");
  for (const std::string& missing : report.missing) fmt::print("missing   {}\n", missing);
}

void measure_into(const std::string& file) {
  const std::filesystem::path path = file;
  if (std::filesystem::exists(path)) {
    throw UsageError("--measure " + file + " is there already: remove it, or write elsewhere.");
  }
  fmt::print("\nmeasuring; other work on this machine shows in the figures ...\n");
  std::fflush(stdout);
  const MachineRates rates = measure_machine();
  const CostModel& cost = rates.cost;
  fmt::print("of one of {} ranks with {} thread{} each, all at work:\n", rates.rank_count, rates.threads_per_rank,
             rates.threads_per_rank == 1 ? "" : "s");
  fmt::print("products  {:.0f} GFLOP/s in fp32\n", cost.flops_per_second * 1e-9);
  fmt::print("copies    {:.1f} GB/s, read and written\n", cost.copy_bytes_per_second * 1e-9);
  fmt::print("AdamW     {:.2f} ns a parameter\n", cost.update_seconds_per_element * 1e9);
  fmt::print("reduces   {:.1f} GB/s from peers, {:.1f} us at least\n", cost.inside_node.bytes_per_second * 1e-9,
             cost.inside_node.latency_seconds * 1e6);
  write_whole_file(path.has_parent_path() ? path.parent_path() : ".", path.filename(), machine_text(cost));
  fmt::print(
      "written to {}: aliquot plan --machine {}\n(links between nodes cannot be measured on one: {:.1f} GB/s "
      "and {:.0f} us are assumed; change them there)\n",
      file, file, cost.between_nodes.bytes_per_second * 1e-9, cost.between_nodes.latency_seconds * 1e6);
}

}  // namespace

int run_doctor(const Arguments& arguments) {
  std::string measure;
  OptionTable table;
  table.text("measure", "FILE", measure,
             "Time copies, collectives and matrix products, and write the machine file that plan --machine reads.");
  if (wants_help(arguments)) {
    fmt::print("{}{}", kHelp, table.help());
    return 0;
  }
  parse_arguments(table, arguments);
  show_machine();
  if (!measure.empty()) measure_into(measure);
  return 0;
}

}  // namespace aliquot
