#pragma once
// Writing a checkpoint: all of it, or none of it.

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
  /// After the commit, all but the newest `keep_count` checkpoints of the directory are removed; 0 keeps all.
  int keep_count = 0;
  /// Who wrote it (zero_stage, device, ...); stands in the manifest alone, beside the number of ranks.
  std::map<std::string, Scalar> written_by = {};
  bool direct_io = true;              // where the file system has it; else ordinary writes
  Ledger* ledger = nullptr;           // where the staging memory is booked
  StagingRing* staging = nullptr;     // null: made, and given back, by the save
  FileSystem* file_system = nullptr;  // null: the system's own; tests put failures here
};

struct SaveReport {
  std::filesystem::path path;  // DIRECTORY/step-00000100
  int64_t file_bytes = 0;
  double seconds = 0;
  bool direct_io = false;
  std::vector<std::string> warnings;  // what went wrong after the commit: an old checkpoint that could not be removed
};

/// Host memory a rank's save or load takes besides the state, at most, whatever the model.
inline constexpr int64_t kStagingBytes = int64_t{4} << 20;

/// Writes `state` to directory/step-STEP. Collective over `communicator`; blocks until the checkpoint is durable and
/// visible, or throws the same error on every rank: UsageError when the ranks' states do not make one (names and ranks
/// are told), FaultError when writing failed on any (all that failed are told). After an error the attempt is gone and
/// every older checkpoint stands. A checkpoint of the same step is replaced in one rename.
/// The same state gives the same state.h5, byte for byte, whatever ranks hold it.
SaveReport save(const State& state, Communicator& communicator, const std::filesystem::path& directory,
                const SaveOptions& options = {});

/// The name of a step's checkpoint: "step-00000100".
std::string checkpoint_name(int64_t step);

}  // namespace aliquot
#pragma GCC visibility pop
