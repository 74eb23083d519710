#pragma once
// The launcher of this process, which determines how much time a rank has to exit.

#include <cstdint>

namespace aliquot {

/// mpirun kills its ranks two seconds after it forwards SIGTERM or SIGINT. srun waits 30 seconds: enough to save if all
/// ranks are alive, but not enough to wait for the timeout of a failed rank.
enum class StartedBy : uint8_t { kItself, kMpirun, kSrun };

/// Determines the launcher from environment variables. Also returns kItself if a launcher started only this process.
StartedBy started_by();

}  // namespace aliquot
