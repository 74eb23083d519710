#pragma once
// Who started this process, as far as it matters how it is ended.

#include <cstdint>

namespace aliquot {

/// mpirun kills its ranks two seconds after SIGTERM and SIGINT; srun leaves them half a minute, which is time to save where
/// nobody died, and not to wait for a rank that did.
enum class StartedBy : uint8_t { kItself, kMpirun, kSrun };

/// By the environment's variables. One process alone was started by itself.
StartedBy started_by();

}  // namespace aliquot
