#pragma once
// The passes of one step of a pipeline, simulated or recorded, in metrics files.

#include <cstdint>
#include <string_view>
#include <vector>

#include "apps/metrics/metrics.h"
#include "engine/cost/trace.h"

namespace aliquot {

/// The time that a pipeline stage spends without interruption in one pass of a micro-batch, or in updates.
struct PassSpan {
  /// The name of the verb, such as "forward"; "update" for all verbs of the optimizer.
  std::string_view pass;
  int32_t virtual_stage = -1, micro_batch = -1;  // -1 if the verb is not one of a pass
  TimeSpan span;
};

/// The work of the compute lane of a pipeline stage, in order, at the times of the timeline. Joins consecutive
/// operations of the same pass. With `coarse`, it also joins operations that are separated by waits, and counts
/// recompute as part of the backward pass that follows.
std::vector<PassSpan> pass_spans(const Plan& plan, const Timeline& timeline, bool coarse);

/// Returns an object of this form:
/// {"order": "1f1b", "micro_batches": .., "virtual_stages": .., "tied_ends": .., "bubble_share": .., "stages": [..]}.
/// Each pipeline stage has {"begin_seconds": .., "step_seconds": .., "bubble_share": .., "passes": ["forward", ..],
/// "virtual_stage": [..], "micro_batch": [..], "start_seconds": [..], "end_seconds": [..]}, with one element for each
/// PassSpan. All times are on the clock of pipeline stage 0, whose step begins at 0.
///
/// `stages` has one rank of each pipeline stage, in order. The result has at most kMaxPassSpans spans. If there are
/// more, they are replaced by coarse spans. Returns null if there are too many coarse spans, or if a timeline is empty.
Json pipeline_json(const std::vector<RankTrace>& stages);

inline constexpr std::size_t kMaxPassSpans = 10'000;

}  // namespace aliquot
