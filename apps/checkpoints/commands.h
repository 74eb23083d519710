#pragma once
// The verbs of `aliquot checkpoint`. Each runs in this process alone and in a fixed amount of memory, prints what it found
// and returns the exit code; a checkpoint that cannot be used is a CheckpointError.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/options/arguments.h"
#include "kernels/formats/dtype.h"

namespace aliquot {

struct CheckpointOptions {
  std::vector<std::string> places;  // what was named without a flag, as many as the verb takes
  std::string out;                  // --out
  DType dtype = DType::kFloat32;    // --dtype
  std::optional<int64_t> heads;     // --heads
  std::optional<int64_t> keep;      // --keep
};

struct CheckpointSubcommand {
  std::string name, places, summary;
  size_t place_count;
  void (*declare)(OptionTable&, CheckpointOptions&);  // its flags
  int (*run)(const CheckpointOptions&);
};

const std::vector<CheckpointSubcommand>& checkpoint_subcommands();

int list_command(const CheckpointOptions& options);
int show_command(const CheckpointOptions& options);
int verify_command(const CheckpointOptions& options);
int diff_command(const CheckpointOptions& options);
int export_command(const CheckpointOptions& options);
int import_command(const CheckpointOptions& options);
int prune_command(const CheckpointOptions& options);

/// A checkpoint by its own path, or the newest of a directory of checkpoints, if there is one.
std::optional<std::filesystem::path> find_checkpoint(const std::string& place);
/// A checkpoint by its own path, or the newest of a directory of checkpoints. Throws CheckpointError when there is none.
std::filesystem::path require_checkpoint(const std::string& place);

/// Tells standard error how far a verification has come, where that is a terminal.
void print_verification_progress(int64_t done_bytes, int64_t all_bytes);

}  // namespace aliquot
