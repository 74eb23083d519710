#pragma once
// The subcommands of `aliquot`.

#include <string>
#include <string_view>
#include <vector>

namespace aliquot {

/// The arguments after the subcommand's name. Each subcommand returns the exit code of the program, or throws an Error
/// that contains the exit code.
using Arguments = std::vector<std::string>;

int run_train(const Arguments& arguments);
int run_data(const Arguments& arguments);
int run_plan(const Arguments& arguments);
int run_sweep(const Arguments& arguments);
int run_report(const Arguments& arguments);
int run_checkpoint(const Arguments& arguments);
int run_doctor(const Arguments& arguments);

/// Whether `arguments` contains --help or -h.
bool wants_help(const Arguments& arguments);

}  // namespace aliquot
