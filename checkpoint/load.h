#pragma once
// Loading a checkpoint into the shards of any number of ranks.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/system/checkpoint_error.h"
#include "kernels/system/ledger.h"
#include "sharding/comm/communicator.h"
#include "sharding/state.h"

#pragma GCC visibility push(default)
namespace aliquot {

class FileSystem;

/// Ignores tensors that only the checkpoint has, if their path begins with `prefix` and the checkpoint's scalar
/// `scalar` differs from `value`. Used if a run continues with another optimizer, because the state of the old
/// optimizer is then not loaded.
struct ReplacedState {
  std::string prefix, scalar;
  Scalar value;
};

struct LoadOptions {
  bool allow_missing = false;   // fill with zeros the tensors that the checkpoint lacks
  bool allow_extra = false;     // ignore tensors that only the checkpoint has, such as optimizer state
  bool allow_rounding = false;  // convert tensors to narrower dtypes too, rounding to nearest
  /// True if the contents of the state may be overwritten even if the load fails, as at the start of a run. The load
  /// then writes data while it verifies it, in one pass over the file instead of two. After a CheckpointError the
  /// contents are undefined, but the state may be loaded again.
  bool state_is_fresh = false;
  Ledger* ledger = nullptr;           // if not null, records the staging memory
  FileSystem* file_system = nullptr;  // null means FileSystem::system()
  std::optional<ReplacedState> replaced = {};
};

struct LoadReport {
  std::filesystem::path path;
  std::vector<std::string> missing;    // tensors that the checkpoint lacks; filled with zeros
  std::vector<std::string> extra;      // tensors that only the checkpoint has; ignored
  std::vector<std::string> converted;  // tensors of another dtype: "NAME (checkpoint: bfloat16, state: float32)"
  /// From load_newest(): one message for each checkpoint that is newer than `path` and cannot be used.
  std::vector<std::string> refused;
  int64_t file_bytes = 0;
  double seconds = 0;
};

/// Fills the pieces of `state`, its step and its scalars from the checkpoint at `path` (a step-... directory).
/// Collective. The number of ranks and the partition may differ from those of the save; pieces marked as copies are
/// filled too.
///
/// Each rank reads its own ranges and verifies its part of the file. This needs kStagingBytes of memory in addition to
/// the state. Unless `state_is_fresh`, the state is not modified before every byte of the checkpoint is verified.
/// Floating-point tensors of another dtype are converted if that is exact or `allow_rounding` is set.
///
/// Throws the same error on every rank. CheckpointError: the checkpoint is absent, damaged or malicious. UsageError:
/// tensors are missing, extra, or of another shape or dtype; the message names some of each kind.
LoadReport load(State& state, Communicator& communicator, const std::filesystem::path& path,
                const LoadOptions& options = {});

/// Loads the newest valid checkpoint of `directory`. Collective. Checkpoints that cannot be used are reported in
/// `refused`, and the next older one is tried. Returns nothing if the directory is absent or has no checkpoint. Throws
/// CheckpointError, with the defect of each checkpoint, if none can be used.
std::optional<LoadReport> load_newest(State& state, Communicator& communicator, const std::filesystem::path& directory,
                                      const LoadOptions& options = {});

}  // namespace aliquot
#pragma GCC visibility pop
