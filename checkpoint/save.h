#pragma once
// Saving a checkpoint atomically.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "kernels/system/ledger.h"
#include "sharding/comm/communicator.h"
#include "sharding/state.h"

#pragma GCC visibility push(default)
namespace aliquot {

class FileSystem;
class StagingRing;

struct SaveOptions {
  /// After the commit, save() removes all but the newest `keep_count` checkpoints of the directory. 0 keeps all.
  int keep_count = 0;
  /// Properties of the run (zero_stage, device, ...). save() adds the number of ranks. Stored in the manifest only.
  std::map<std::string, Scalar> written_by = {};
  bool direct_io = true;              // use direct I/O if the file system supports it
  Ledger* ledger = nullptr;           // if not null, records the staging memory
  StagingRing* staging = nullptr;     // if null, save() allocates a ring and frees it
  FileSystem* file_system = nullptr;  // null means FileSystem::system(); tests inject failures here
};

struct SaveReport {
  std::filesystem::path path;  // DIRECTORY/step-00000100
  int64_t file_bytes = 0;
  double seconds = 0;
  bool direct_io = false;
  std::vector<std::string> warnings;  // failures after the commit, such as old checkpoints that could not be removed
};

/// Maximum host memory that a save or a load uses on each rank in addition to the state, for any model.
inline constexpr int64_t kStagingBytes = int64_t{4} << 20;

/// Writes `state` to directory/step-STEP. Collective over `communicator`. Returns when the checkpoint is durable and
/// visible, or throws the same error on every rank. UsageError: the states of the ranks do not form one state; the
/// message names tensors and ranks. FaultError: a rank could not write; the message names all ranks that failed.
///
/// After an error the partial save is removed, and older checkpoints are intact. An existing checkpoint of the same
/// step is replaced by an atomic exchange of names. On file systems without such an exchange, save() renames twice, and
/// sweep_leftovers() restores the old checkpoint after a crash between the two renames. Equal states give
/// byte-identical state.h5 files, for any number of ranks and any partition.
SaveReport save(const State& state, Communicator& communicator, const std::filesystem::path& directory,
                const SaveOptions& options = {});

/// Returns the directory name of the checkpoint of a step, such as "step-00000100".
std::string checkpoint_name(int64_t step);

}  // namespace aliquot
#pragma GCC visibility pop
