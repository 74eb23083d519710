#pragma once
// The figures of a planned pipeline that `aliquot plan` prints.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "apps/plan/plan_text.h"

namespace aliquot {

/// The memory of one pipeline stage, and how it spends a simulated step. A share is a fraction of the step's time.
struct StageFigures {
  int32_t index = 0, use_count = 0;
  int64_t parameter_count = 0;
  int64_t peak_bytes = 0;  // of a rank
  /// The maximum number of micro-batches whose saved activations exist at the same time. With several virtual stages,
  /// the sum of their maxima, without that of tied ends.
  int activations_in_flight = 0;
  double compute_seconds = 0;
  double bubble_share = 0;     // see Timeline::idle_share()
  double transfer_share = 0;   // the time while at least one send or receive runs
  double node_link_share = 0;  // the time while the link between nodes sends data of this pipeline stage
};

/// The figures of each pipeline stage, in order.
std::vector<StageFigures> stage_figures(const PlannedRun& outcome);

/// The mean of the bubble shares of all pipeline stages.
double bubble_share(const PlannedRun& outcome);

/// The bubble share of a pipeline whose passes all take equally long and whose transfers take no time.
struct BubbleFormula {
  std::string_view text;  // for p pipeline stages, m micro-batches, v virtual stages
  double share = 0;
};

/// Returns nullopt without a pipeline, for an order of passes that has no formula, and for an interleaved pipeline if p
/// does not divide m.
std::optional<BubbleFormula> bubble_formula(const Policy& policy);

}  // namespace aliquot
