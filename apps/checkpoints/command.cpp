// aliquot checkpoint: finds the verb that is meant, and its flags.
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

void prune_flags(OptionTable& table, CheckpointOptions& options) {
  table.count("keep", options.keep, {.least = 1}, "How many of the newest that verify are kept; must be given.");
}

void import_flags(OptionTable& table, CheckpointOptions& options) {
  table.text("out", "DIR", options.out, "Where to write; must be given.");
}

void export_flags(OptionTable& table, CheckpointOptions& options) {
  import_flags(table, options);
  table.choice("dtype", options.dtype, kComputeWords, "What the weights are written in.");
  table.count("heads", options.heads, {.least = 1}, "The model's heads, where the checkpoint does not say.");
}

std::string help() {
  std::string text = "aliquot checkpoint VERB ...\n\n";
  for (const CheckpointSubcommand& verb : checkpoint_subcommands()) {
    text += fmt::format("  {:<36}{}\n", verb.name + " " + verb.places, verb.summary);
  }
  text +=
      "\nPATH is a checkpoint (DIR/step-00000100), or a directory of them: then the newest. Exit codes: 0 done; 1 "
      "wrong use, "
      "or\ndiff found a difference; 5 a checkpoint is absent or cannot be used.\n";
  for (const CheckpointSubcommand& verb : checkpoint_subcommands()) {
    CheckpointOptions options;
    OptionTable table;
    verb.declare(table, options);
    if (!table.entries().empty()) text += fmt::format("\n{}\n{}", verb.name, option_help(table));
  }
  return text;
}

const CheckpointSubcommand& find_subcommand(const std::string& given) {
  std::vector<std::string> names;
  for (const CheckpointSubcommand& verb : checkpoint_subcommands()) {
    if (verb.name == given) return verb;
    names.push_back(verb.name);
  }
  throw UsageError("checkpoint has no verb '" + given + "'." + did_you_mean(given, names, "") +
                   " aliquot checkpoint --help lists them.");
}

}  // namespace

const std::vector<CheckpointSubcommand>& checkpoint_subcommands() {
  static const std::vector<CheckpointSubcommand> verbs{
      {"list", "DIR", "every checkpoint of a directory, oldest first", 1, no_flags, list_command},
      {"show", "PATH", "step, who wrote it, tensors, scalars and the digest of its weights", 1, no_flags, show_command},
      {"verify", "PATH", "re-read every byte against the manifest; of a directory, all its checkpoints", 1, no_flags,
       verify_command},
      {"diff", "A B", "the tensors that differ, and by how much", 2, no_flags, diff_command},
      {"export", "PATH --out DIR", "model.safetensors and config.json, as transformers loads them", 1, export_flags,
       export_command},
      {"import", "FILE.safetensors --out DIR", "a checkpoint of those weights, without an optimizer", 1, import_flags,
       import_command},
      {"prune", "DIR --keep K", "remove what is older than the newest K that verify", 1, prune_flags, prune_command}};
  return verbs;
}

int run_checkpoint(const Arguments& arguments) {
  if (arguments.empty() || wants_help(arguments)) {
    write_stream(arguments.empty() ? stderr : stdout, help());
    return static_cast<int>(arguments.empty() ? ExitCode::kUsage : ExitCode::kDone);
  }
  const CheckpointSubcommand& verb = find_subcommand(arguments[0]);
  CheckpointOptions options;
  OptionTable table;
  verb.declare(table, options);
  Arguments words(arguments.begin() + 1, arguments.end());
  options.places = extract_positional(words, table);
  parse_arguments(table, words);
  if (options.places.size() != verb.place_count) {
    throw UsageError(fmt::format("checkpoint {} takes {} ({} given): aliquot checkpoint {} {}.", verb.name,
                                 verb.place_count == 1 ? "one path" : "two paths", options.places.size(), verb.name,
                                 verb.places));
  }
  return verb.run(options);
}

}  // namespace aliquot
