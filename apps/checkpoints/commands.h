#pragma once
// The subcommands of `aliquot checkpoint`. Each runs in one process with a fixed amount of memory, prints its result
// and returns the exit code of the command. The functions throw CheckpointError if a checkpoint is missing or invalid.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/options/arguments.h"
#include "kernels/formats/dtype.h"

namespace aliquot {

struct CheckpointOptions {
  std::vector<std::string> paths;  // positional arguments: checkpoints or weights
  std::string out;                 // --out
  std::string lora;                // --lora: merged or adapter; empty if not given
  std::string base;                // --base
  DType dtype = DType::kFloat32;   // --dtype
  std::optional<int64_t> heads;    // --heads
  std::optional<int64_t> keep;     // --keep
  bool all_tensors = false;        // --all-tensors
};

struct CheckpointSubcommand {
  std::string name, usage, summary;                   // `usage` names the arguments: --help prints it after `name`
  size_t path_count;                                  // the number of positional arguments
  void (*declare)(OptionTable&, CheckpointOptions&);  // adds the subcommand's flags to the table
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

/// The files that export_command() writes.
inline constexpr const char *kWeightsFile = "model.safetensors", *kAdapterFile = "adapter_model.safetensors",
                            *kAdapterConfigFile = "adapter_config.json";

/// Copies the tokenizer.json of the weights `from` to the directory `to`. Does nothing if the weights have none, or if
/// `to` already has one.
void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to);

/// Returns the text of the config.json `config`. If its eos_token_id is missing or null, replaces it with the
/// end-of-text token of the tokenizer in `folder`, if there is one. transformers ends a text at this token.
std::string with_end_token(const std::string& config, const std::filesystem::path& folder);

/// Like with_end_token(), for a `config` of config_text(), which knows only the size of the vocabulary. The tokenizer
/// in `folder` replaces the tokens that config_text() derived from this size. Without a supported tokenizer, they stay.
std::string with_tokens_of_tokenizer(const std::string& config, const std::filesystem::path& folder);

/// Returns `path` if it is a checkpoint, or the newest checkpoint in the directory `path`; nullopt if there is none.
std::optional<std::filesystem::path> find_checkpoint(const std::string& path);
/// Like find_checkpoint(), but throws CheckpointError if there is no checkpoint.
std::filesystem::path require_checkpoint(const std::string& path);

/// Shows the progress of a verification on standard error, if standard error is a terminal.
void print_verification_progress(int64_t done_bytes, int64_t all_bytes);

}  // namespace aliquot
