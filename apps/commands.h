#pragma once
// The commands of `aliquot`.

#include <string>
#include <string_view>
#include <vector>

namespace aliquot {

/// What came after the command's name. Each returns the program's exit code, or throws an Error that carries it.
using Arguments = std::vector<std::string>;

int run_train(const Arguments& arguments);
int run_plan(const Arguments& arguments);
int run_sweep(const Arguments& arguments);
int run_report(const Arguments& arguments);
int run_checkpoint(const Arguments& arguments);
int run_doctor(const Arguments& arguments);

/// Whether --help or -h was asked for.
bool wants_help(const Arguments& arguments);

}  // namespace aliquot
