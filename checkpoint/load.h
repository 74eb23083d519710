#pragma once
// Reading a checkpoint into the shards of any world.

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

/// Tensors below `prefix` may stand in the checkpoint alone, and are left there, if its scalar of that name is another: the
/// state of one optimizer where another goes on.
struct ReplacedState {
  std::string prefix, scalar;
  Scalar value;
};

struct LoadOptions {
  bool allow_missing = false;   // zeros where the checkpoint lacks a tensor of the state
  bool allow_extra = false;     // leave what the state does not ask for: weights without their optimizer
  bool allow_rounding = false;  // convert tensors that the checkpoint has in a wider dtype, to the nearest
  /// What the state holds is worth nothing yet (a run that starts): bytes go in while they are verified, in one pass over
  /// the file instead of two. After a CheckpointError the state is not to be used, but may be loaded again.
  bool state_is_fresh = false;
  Ledger* ledger = nullptr;           // where the staging memory is booked
  FileSystem* file_system = nullptr;  // null: the system's own
  std::optional<ReplacedState> replaced = {};
};

struct LoadReport {
  std::filesystem::path path;
  std::vector<std::string> missing;    // tensors set to zero
  std::vector<std::string> extra;      // tensors left alone
  std::vector<std::string> converted;  // tensors of another dtype, a line each: "NAME (there bfloat16, here float32)"
  std::vector<std::string> refused;    // load_newest: newer checkpoints that are bad, a sentence each
  int64_t file_bytes = 0;
  double seconds = 0;
};

/// Fills the pieces of `state`, its step and its scalars from the checkpoint at `path` (a step-... directory).
/// Collective; any number of ranks, any cuts, copies included. Each rank reads its own ranges and its share of the
/// verification, and needs kStagingBytes besides. Nothing of `state` is touched before every byte of the checkpoint has
/// been verified. A floating-point tensor of another dtype is converted where that is exact, or asked for. Throws on every
/// rank the same: CheckpointError when it is absent, damaged or hostile; UsageError, naming some of each kind, when tensors
/// are missing, extra or of another shape or dtype.
LoadReport load(State& state, Communicator& communicator, const std::filesystem::path& path,
                const LoadOptions& options = {});

/// The newest valid checkpoint of `directory`; a bad one is named in the report and the next newest taken. Nothing when
/// the directory is absent or holds none; CheckpointError, telling each, when all are bad. Collective.
std::optional<LoadReport> load_newest(State& state, Communicator& communicator, const std::filesystem::path& directory,
                                      const LoadOptions& options = {});

}  // namespace aliquot
#pragma GCC visibility pop
