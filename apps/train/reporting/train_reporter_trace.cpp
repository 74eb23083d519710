// Writes the file of --trace.
#include <fmt/format.h>
#include <fstream>

#include "apps/console.h"
#include "apps/train/reporting/rank_timelines.h"
#include "apps/train/reporting/train_reporter.h"

namespace aliquot {

void TrainReporter::write_trace_file() const {
  const std::string& path = context_.options().trace;
  const std::vector<RankTrace> ranks = gather_timelines(context_, TimelinesOf::kAllRanks);
  if (!context_.is_rank_zero()) return;
  if (ranks.empty()) {
    warn("--trace {}: not written, because a trace needs at least three steps.", path);
    return;
  }
  std::ofstream file(path);
  write_trace(file, ranks);
  if (!file.flush()) throw FaultError(fmt::format("--trace {}: the file could not be written.", path));
}

}  // namespace aliquot
