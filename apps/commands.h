#pragma once
// The subcommands of `aliquot`.

#include <string>
#include <string_view>
#include <vector>

#include "apps/help/command_help.h"

namespace aliquot {

/// The arguments after the subcommand's name. Each subcommand returns the exit code of the program, or throws an Error
/// that contains the exit code.
using Arguments = std::vector<std::string>;

int run_train(const Arguments& arguments);
int run_data(const Arguments& arguments);
int run_eval(const Arguments& arguments);
int run_sample(const Arguments& arguments);
int run_plan(const Arguments& arguments);
int run_sweep(const Arguments& arguments);
int run_report(const Arguments& arguments);
int run_checkpoint(const Arguments& arguments);
int run_doctor(const Arguments& arguments);

// The help of each subcommand.
CommandHelp train_help();
CommandHelp data_help();
CommandHelp eval_help();
CommandHelp sample_help();
CommandHelp plan_help();
CommandHelp sweep_help();
CommandHelp report_help();
CommandHelp checkpoint_help();
CommandHelp doctor_help();

}  // namespace aliquot
