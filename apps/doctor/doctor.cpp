// aliquot doctor: what this build and this machine offer.
#include "apps/doctor/doctor.h"

#include <filesystem>
#include <fmt/format.h>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/explain/explain.h"
#include "apps/options/arguments.h"
#include "apps/plan/machine.h"
#include "checkpoint/weights/export_weights.h"
#include "engine/options/enum_names.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr std::string_view kHelp =
    "aliquot doctor [--measure FILE [--device host|cuda] | --explain FILE...]\n\n"
    "  Says what this build and this machine offer: cores, memory, vector loops, GPUs, MPI, links; what is missing, "
    "and\n"
    "  what would add it. Started by mpirun over several nodes, --measure takes the links between them too.\n\n";

void print_machine() {
  const MachineReport report = report_machine();
  for (const auto& [what, text] : report.lines) write_stdout("{:<9} {}\n", what, text);
  if (report.missing.empty()) write_stdout("missing   nothing\n");
  for (const std::string& missing : report.missing) write_stdout("missing   {}\n", missing);
}

void check_not_existing(const std::string& file) {
  std::error_code unseen;  // what cannot be seen cannot be written either, and that is told then
  if (std::filesystem::exists(file, unseen))
    throw UsageError("--measure " + file + " is there already: remove it, or write elsewhere.");
}

void print_links(const MachineRates& rates) {
  const CostModel& cost = rates.cost;
  const auto line = [](const char* what, const LinkCost& link) {
    write_stdout("{}{:.3f} GB/s between nodes, {:.0f} us at least\n", what, link.bytes_per_second * 1e-9,
                 link.latency_seconds * 1e6);
  };
  if (!rates.several_nodes) {
    write_stdout(
        "(links between nodes cannot be measured on one: {:.1f} GB/s and {:.0f} us are assumed; start this with "
        "mpirun over several, or change them there)\n",
        cost.between_nodes.bytes_per_second * 1e-9, cost.between_nodes.latency_seconds * 1e6);
    return;
  }
  line("links     ", cost.between_nodes);
  line("          while ranks compute: ", cost.beside_compute);
  write_stdout("          which they then do {:.0f} % slower\n", 100 * cost.beside_compute_share);
}

void write_rates(const MachineRates& rates, const std::string& file) {
  const CostModel& cost = rates.cost;
  const std::string each = rates.has_gpus ? std::string("on a GPU each")
                                          : fmt::format("with {} thread{} each", rates.threads_per_rank,
                                                        rates.threads_per_rank == 1 ? "" : "s");
  write_stdout("\nof one of {} ranks {}, all at work; other work on this machine shows in the figures:\n",
               rates.rank_count, each);
  write_stdout("products  {:.0f} GFLOP/s in {}\n", cost.flops_per_second * 1e-9, rates.has_gpus ? "bf16" : "fp32");
  write_stdout("copies    {:.1f} GB/s, read and written\n", cost.copy_bytes_per_second * 1e-9);
  if (rates.has_gpus) write_stdout("from host {:.1f} GB/s\n", cost.host_bytes_per_second * 1e-9);
  write_stdout("AdamW     {:.3f} ns a parameter\n", cost.update_seconds_per_element * 1e9);
  write_stdout("reduces   {:.1f} GB/s from peers, {:.1f} us at least{}\n", cost.inside_node.bytes_per_second * 1e-9,
               cost.inside_node.latency_seconds * 1e6,
               rates.ranks_on_node > 1 ? "" : " (assumed: a node has one rank)");
  print_links(rates);
  const std::filesystem::path path = file;
  write_file_atomically(path.has_parent_path() ? path.parent_path() : ".", path.filename(),
                        machine_text(cost, rates.has_gpus));
  write_stdout("written to {}: aliquot plan --machine {}\n", file, file);
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

int run_doctor(const Arguments& arguments) {
  std::string measure, flight;
  DeviceChoice device = DeviceChoice::kAuto;
  OptionTable table;
  table.text("measure", "FILE", measure,
             "Time copies, collectives and matrix products, and write the machine file that plan --machine reads.");
  table.choice("device", device, kDeviceWords, "What to measure; auto: GPUs where there are any.");
  table.text("explain", "FILE...", flight,
             "Say in words what the records that the ranks of a failed run left, or those of a folder, show.");
  if (wants_help(arguments)) {
    write_stdout("{}{}", kHelp, option_help(table));
    return 0;
  }
  Arguments flags = arguments;
  const Arguments more_flights = extract_positional(flags, table);
  parse_arguments(table, flags);
  if (!flight.empty()) return explain_flights(flight, more_flights);
  if (!more_flights.empty()) throw UsageError("'" + more_flights.front() + "' is no option of doctor (see --help).");
  MachineRates rates;
  if (!measure.empty()) {
    check_not_existing(measure);
    rates = measure_machine(device);
    if (!rates.is_rank_zero) return 0;  // of the ranks that a launcher started, one tells
  }
  if (!rates.launched) print_machine();  // what it starts to look around would count as one of the ranks
  if (!measure.empty()) write_rates(rates, measure);
  return 0;
}

}  // namespace aliquot
