// aliquot train: from the command line to the digest.
#include <fmt/format.h>

#include "apps/commands.h"
#include "apps/options/train_options.h"
#include "kernels/error.h"

namespace aliquot {
namespace {

// As a configuration file takes it: nothing where nothing was given.
std::string text_of(const Json& value) {
  if (value.is_null()) return "";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string help(const OptionTable& table) {
  return "aliquot train [--option value ...]\n\n"
         "  aliquot train --zero-stage 3 --ranks 4          4 ranks as threads, no launcher\n"
         "  mpirun -n 4 aliquot train --zero-stage 2        4 processes\n\n"
         "Sizes take KiB MiB GiB KB MB GB, counts k m b. Defaults stand in brackets.\n\n" +
         table.help();
}

}  // namespace

int run_train(const Arguments& arguments) {
  TrainOptions options;
  const OptionTable table = train_option_table(options);
  if (wants_help(arguments)) {
    fmt::print("{}", help(table));
    return 0;
  }
  parse_arguments(table, arguments);
  refuse_unfinished(options);
  resolve(options, static_cast<int>(options.ranks.value_or(1)), false);
  if (options.dry_run) {
    const Json values = table.values();
    for (const auto& [name, value] : values.items()) {
      if (name != "config" && name != "dry-run") fmt::print("{} = {}\n", name, text_of(value));
    }
    return 0;
  }
  throw UnavailableError("training is not built yet; --dry-run shows what would run.");
}

}  // namespace aliquot
