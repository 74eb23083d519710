// aliquot checkpoint: parses the command line and runs a subcommand.
#include <algorithm>
#include <fmt/format.h>

#include "apps/checkpoints/commands.h"
#include "apps/commands.h"
#include "apps/console.h"
#include "engine/options/enum_names.h"
#include "engine/options/nearest.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

void no_flags(OptionTable&, CheckpointOptions&) {}

void show_flags(OptionTable& table, CheckpointOptions& options) {
  table.toggle("all-tensors", options.all_tensors, "One line for each tensor, also for those of similar layers.");
}

void prune_flags(OptionTable& table, CheckpointOptions& options) {
  table.count("keep", options.keep, {.least = 1}, "Number of newest valid checkpoints to keep; required.");
}

void import_flags(OptionTable& table, CheckpointOptions& options) {
  table.text("out", "DIR", options.out, "Directory to write to; required.");
}

void export_flags(OptionTable& table, CheckpointOptions& options) {
  import_flags(table, options);
  table.choice("lora", options.lora, {"merged", "adapter"},
               "For a checkpoint of adapters: merged writes weights that include them, and adapter writes "
               "adapter_model.safetensors and adapter_config.json for PEFT.");
  table.text("base", "DIR", options.base,
             "The weights that a checkpoint of adapters belongs to; default: the path that it records.");
  table.choice("dtype", options.dtype, kComputeWords, "Data type of the written weights.");
  table.count("heads", options.heads, {.least = 1}, "Number of attention heads, if the checkpoint does not record it.");
}

const CheckpointSubcommand& find_subcommand(const std::string& given) {
  std::vector<std::string> names;
  for (const CheckpointSubcommand& subcommand : checkpoint_subcommands()) {
    if (subcommand.name == given) return subcommand;
    names.push_back(subcommand.name);
  }
  throw UsageError("unknown subcommand '" + given + "' of aliquot checkpoint." + did_you_mean(given, names, "") +
                   " aliquot checkpoint --help lists all subcommands.");
}

}  // namespace

const std::vector<CheckpointSubcommand>& checkpoint_subcommands() {
  static const std::vector<CheckpointSubcommand> subcommands{
      {"list", "DIR", "list the checkpoints of a directory, oldest first", 1, no_flags, list_command},
      {"show", "PATH", "print step, writer, scalars, tensors and the digest of the weights", 1, show_flags,
       show_command},
      {"verify", "PATH", "check every byte against the manifest; in a directory, verify all checkpoints", 1, no_flags,
       verify_command},
      {"diff", "A B", "print the tensors that differ, and by how much", 2, no_flags, diff_command},
      {"export", "PATH --out DIR", "write model.safetensors and config.json for transformers", 1, export_flags,
       export_command},
      {"import", "FILE.safetensors --out DIR", "convert weights to a checkpoint without optimizer state", 1,
       import_flags, import_command},
      {"prune", "DIR --keep K", "remove all checkpoints older than the newest K valid ones", 1, prune_flags,
       prune_command}};
  return subcommands;
}

CommandHelp checkpoint_help() {
  CommandHelp help{.name = "checkpoint",
                   .summary = "list, show, verify, compare, export, import and prune checkpoints",
                   .usage = "SUBCOMMAND ...",
                   .text =
                       "PATH is a checkpoint (DIR/step-00000100) or a directory of checkpoints. In a directory, "
                       "the newest is used.",
                   .options = {},
                   .subcommands = {},
                   .exit_codes = {0, 1, 3, 5}};
  for (const CheckpointSubcommand& subcommand : checkpoint_subcommands()) {
    CheckpointOptions options;
    OptionTable table;
    subcommand.declare(table, options);
    help.subcommands.push_back({subcommand.name, subcommand.usage, subcommand.summary, help_options(table)});
  }
  return help;
}

int run_checkpoint(const Arguments& arguments) {
  if (arguments.empty()) {
    write_stream(stderr, help_text(checkpoint_help()));
    return static_cast<int>(ExitCode::kUsage);
  }
  const CheckpointSubcommand& subcommand = find_subcommand(arguments[0]);
  CheckpointOptions options;
  OptionTable table;
  subcommand.declare(table, options);
  Arguments words(arguments.begin() + 1, arguments.end());
  options.paths = extract_positional(words, table);
  parse_arguments(table, words);
  if (options.paths.size() != subcommand.path_count) {
    throw UsageError(fmt::format("checkpoint {} needs {}, got {}. Usage: aliquot checkpoint {} {}.", subcommand.name,
                                 subcommand.path_count == 1 ? "one path" : "two paths", options.paths.size(),
                                 subcommand.name, subcommand.usage));
  }
  return subcommand.run(options);
}

}  // namespace aliquot
