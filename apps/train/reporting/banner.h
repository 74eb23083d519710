#pragma once
// The lines that `aliquot train` prints before its first step.

#include <cstdint>
#include <string>

#include "apps/train/reporting/memory_audit.h"
#include "apps/train/train_context.h"

namespace aliquot {

/// Returns one line each about the model, the ranks, the precision, the optimizer, the batch, the data, the planned
/// memory, --replay-every, and what --memory-budget chose. `data_tokens` is the length of the training data.
std::string start_banner(const TrainContext& context, const MemoryAudit& audit, int64_t data_tokens);

/// Returns how often replays run (--replay-every), and their planned share of the time.
std::string replay_line(const TrainContext& context);

}  // namespace aliquot
