#pragma once
// The findings of the report: ranks that are missing or late.

#include <string>
#include <vector>

#include "apps/explain/evidence.h"

namespace aliquot {

/// A collective that some ranks entered and never finished. `missing` ranks never arrived; `late` ranks arrived after
/// the waiting ranks had given up. Ranks are in the order of the group.
struct PendingCollective {
  const CollectiveRecord* collective = nullptr;
  std::vector<int> waiting, missing, late;
};

/// Returns the first pending collective of each lane of each group, and the first pending rendezvous of each group.
/// Later ones are omitted, because ranks that gave up at the first one could not reach them.
///
/// If the records have no times, a rank is missing if its record shows that it did not issue the collective. The ranks
/// that issued it then count as waiting. A rank without a record counts as missing from each collective that is the
/// last entry in the record of another rank.
///
/// Rendezvous come first, then collectives, each in the order of issue. A rendezvous counts only if ranks failed
/// because of it, or if the launcher ended all ranks.
std::vector<PendingCollective> find_pending_collectives(const Evidence& evidence);

/// Whether the rank ran model code for at least half as long as the ranks of `wait` waited. If the records have no
/// times: whether the rank was in model code when it wrote its record.
bool ran_model_code_meanwhile(const Evidence& evidence, const PendingCollective& wait, int rank);

/// Returns the missing ranks of `wait` that do not themselves wait in a collective of `waits`. All other ranks wait for
/// them, directly or indirectly. If `wait` is a rendezvous, only waits in a rendezvous count: another thread of the
/// rank may enter the rendezvous while the training thread waits in a collective.
///
/// A receive can wait while its rank computes. Therefore a rank that failed itself counts as not waiting. A rank for
/// which ran_model_code_meanwhile() holds counts as waiting only if it waited for at least half as long as the ranks of
/// `wait`.
std::vector<int> root_causes(const Evidence& evidence, const std::vector<PendingCollective>& waits,
                             const PendingCollective& wait);

/// Returns, for example, "collective #13 of the reduce lane, reduce-scatter of 256 float32 (h.1, step 3)" or
/// "rendezvous #7 (save, step 20)".
std::string place_text(const PendingCollective& wait);

struct MissingRanks {
  std::string text;         // empty if no rank was waiting
  std::vector<int> causes;  // the ranks that caused the failure, as far as the records show; may be empty
};

/// Describes ranks that never arrived, ranks that arrived late, or a deadlock. Reports first the ranks that failed
/// themselves, then those without a record, those that ran model code, and all others.
///
/// If the launcher ended every rank that wrote a record, only a rank without a record is reported as the cause. The
/// other ranks were ended in the middle of a step, so they too can be missing from a collective. If no rank without a
/// record is missing, only long waits are reported.
MissingRanks find_missing_ranks(const Evidence& evidence);

/// Describes the first cause of the failure of a pipeline and, for each pipeline stage, which ranks its ranks waited
/// for. `causes` is the result of find_missing_ranks(). Returns "" without a pipeline.
std::string pipeline_text(const Evidence& evidence, std::vector<int> causes);

/// A line for each straggler: a rank for which another rank waited at least 10 % of that other rank's recorded time.
/// A collective ends on all ranks at the same time, so the rank that waited least arrived last. Clocks of different
/// ranks are not compared. The line states the longest total time that one rank waited for the straggler, by the clock
/// of the rank that waited. Simultaneous waits in two lanes count once.
std::string late_ranks_text(const Evidence& evidence);

}  // namespace aliquot
