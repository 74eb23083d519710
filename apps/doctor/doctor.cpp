// aliquot doctor: reports on this build and this machine, and explains flight records.
#include "apps/doctor/doctor.h"

#include <filesystem>
#include <fmt/format.h>
#include <system_error>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/explain/explain.h"
#include "apps/options/arguments.h"
#include "apps/plan/machine.h"
#include "checkpoint/weights/export_weights.h"
#include "engine/options/enum_names.h"
#include "kernels/system/error.h"
#include "kernels/system/file.h"

namespace aliquot {
namespace {

struct DoctorOptions {
  std::string measure, explain;
  DeviceChoice device = DeviceChoice::kAuto;
};

OptionTable doctor_option_table(DoctorOptions& o) {
  OptionTable table;
  table.text("measure", "FILE", o.measure,
             "Measure copies, collectives and matrix products, and write the machine file for plan --machine.");
  table.choice("device", o.device, kDeviceWords, "Device to measure; auto: GPUs if there are any.");
  table.text("explain", "FILE...", o.explain,
             "Explain a failed run from the flight records of its ranks (files or directories).");
  return table;
}

void print_machine() {
  const MachineReport report = report_machine();
  for (const auto& [what, text] : report.lines) write_stdout("{:<9} {}\n", what, text);
  if (report.missing.empty()) write_stdout("missing   nothing\n");
  for (const std::string& missing : report.missing) write_stdout("missing   {}\n", missing);
}

/// Checks before the measurement that the file can be written, because it is written only at the end. For this, creates
/// a file without a name in its directory: access() would succeed for root in directories such as /proc.
void check_output_file(const std::string& file) {
  const std::filesystem::path path = file;
  std::error_code failure;
  if (std::filesystem::exists(path, failure))
    throw UsageError("--measure " + file + " already exists: remove it, or name another file.");
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("--measure {}: the file cannot be written: {}.", file, why));
  };
  if (failure) refuse(failure.message());
  try {
    Directory::open(FileSystem::system(), path.has_parent_path() ? path.parent_path() : ".").create_unnamed();
  } catch (const FaultError& error) {
    refuse(error.what());
  }
}

void print_links(const MachineRates& rates) {
  const CostModel& cost = rates.cost;
  const auto line = [](const char* what, const LinkCost& link) {
    write_stdout("{}{:.3f} GB/s between nodes, latency {:.0f} us\n", what, link.bytes_per_second * 1e-9,
                 link.latency_seconds * 1e6);
  };
  if (!rates.several_nodes) {
    write_stdout(
        "(links between nodes cannot be measured on one node; the file assumes {:.1f} GB/s and {:.0f} us. Edit these "
        "numbers, or start this command with mpirun on several nodes.)\n",
        cost.between_nodes.bytes_per_second * 1e-9, cost.between_nodes.latency_seconds * 1e6);
    return;
  }
  line("links     ", cost.between_nodes);
  line("          while ranks compute: ", cost.beside_compute);
  write_stdout("          computation during these transfers is {:.0f} % slower\n", 100 * cost.beside_compute_share);
}

void write_rates(const MachineRates& rates, const std::string& file) {
  const CostModel& cost = rates.cost;
  const std::string each =
      rates.has_gpus ? std::string("one GPU each")
                     : fmt::format("{} thread{} each", rates.threads_per_rank, rates.threads_per_rank == 1 ? "" : "s");
  write_stdout("\nrates of one rank while all {} ranks work ({}); other load on this machine lowers them:\n",
               rates.rank_count, each);
  write_stdout("products  {:.0f} GFLOP/s in {}\n", cost.flops_per_second * 1e-9, rates.has_gpus ? "bf16" : "fp32");
  write_stdout("copies    {:.1f} GB/s, reads plus writes\n", cost.copy_bytes_per_second * 1e-9);
  if (rates.has_gpus) write_stdout("from host {:.1f} GB/s\n", cost.host_bytes_per_second * 1e-9);
  write_stdout("AdamW     {:.3f} ns per parameter\n", cost.update_seconds_per_element * 1e9);
  write_stdout("reduces   {:.1f} GB/s from peers, latency {:.1f} us{}\n", cost.inside_node.bytes_per_second * 1e-9,
               cost.inside_node.latency_seconds * 1e6,
               rates.ranks_on_node > 1 ? "" : " (assumed, because the node has only one rank)");
  print_links(rates);
  const std::filesystem::path path = file;
  write_file_atomically(path.has_parent_path() ? path.parent_path() : ".", path.filename(),
                        machine_text(cost, rates.has_gpus, rates.memory_bytes));
  write_stdout("wrote {}; use it with: aliquot plan --machine {}\n", file, file);
}

int explain_flights(const std::string& first, const std::vector<std::string>& more) {
  std::vector<std::filesystem::path> places{first};
  places.insert(places.end(), more.begin(), more.end());
  FlightRecords flights = read_flights(places);
  for (const std::string& sentence : flights.skip_messages) write_stdout("{}\n", sentence);
  write_stdout("{}", explain(std::move(flights.records)));
  return 0;
}

}  // namespace

CommandHelp doctor_help() {
  DoctorOptions options;
  return {.name = "doctor",
          .summary = "show what this build and this machine support",
          .usage = "[--measure FILE [--device host|cuda] | --explain FILE...]",
          .text =
              "Reports the features of this build and this machine: cores, memory, vector instructions, GPUs, MPI "
              "and network links. Also reports what is missing and how to add it. With --measure, measures the "
              "rates of this machine. If mpirun starts the command on several nodes, --measure also measures the "
              "links between the nodes.",
          .options = help_options(doctor_option_table(options)),
          .subcommands = {},
          .exit_codes = {0, 1, 2, 3}};
}

int run_doctor(const Arguments& arguments) {
  DoctorOptions options;
  const OptionTable table = doctor_option_table(options);
  Arguments flags = arguments;
  const Arguments more_flights = extract_positional(flags, table);
  parse_arguments(table, flags);
  if (!options.explain.empty()) return explain_flights(options.explain, more_flights);
  if (!more_flights.empty())
    throw UsageError("unexpected argument '" + more_flights.front() + "' of doctor: see aliquot doctor --help.");
  MachineRates rates;
  if (!options.measure.empty()) {
    check_output_file(options.measure);
    rates = measure_machine(options.device);
    if (!rates.is_rank_zero) return 0;  // only the process of rank 0 prints
  }
  // Skipped under a launcher: print_machine() initializes MPI in a child process, which would count as another rank.
  if (!rates.launched) print_machine();
  if (!options.measure.empty()) write_rates(rates, options.measure);
  return 0;
}

}  // namespace aliquot
