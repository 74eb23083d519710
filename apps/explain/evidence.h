#pragma once
// The flight records of a failed run.

#include <map>
#include <string>
#include <vector>

#include "apps/explain/collectives.h"
#include "sharding/flight/flight_file.h"

namespace aliquot {

/// One or more flight records of one run, at most one for each rank, with their collectives matched. Members point into
/// `records`.
struct Evidence {
  explicit Evidence(std::vector<FlightRecord> flights);
  Evidence(const Evidence&) = delete;
  Evidence& operator=(const Evidence&) = delete;

  const FlightRecord& of(int rank) const { return *by_rank.at(rank); }
  /// "rank 3", or "rank 3 (pipeline stage 1 of 2, shard 1 of 2)" if there are several pipeline stages or replicas.
  std::string rank_text(int rank) const;
  bool has(int rank) const { return by_rank.contains(rank); }
  /// Whether the rank's record is truncated. The rank may then have issued more collectives than its record has.
  bool is_truncated(int rank) const { return has(rank) && !of(rank).complete; }
  /// Whether the records have the start and end times of this collective, not only the time of issue.
  bool is_timed(const CollectiveRecord& collective) const { return timed || collective.is_rendezvous; }
  /// Whether the rank started the operation. Without times an operation that was issued counts as started.
  bool has_reached(const FlightEntry& entry) const { return !timed || entry.begun >= 0; }

  std::vector<FlightRecord> records;  // sorted by rank
  std::map<int, const FlightRecord*> by_rank;
  std::vector<CollectiveRecord> collectives;
  /// Whether collectives have start and end times. Ranks on GPUs record only the time of issue.
  bool timed;
  bool ended_by_launcher;  // the launcher ended every rank that has a record; none recorded a failure
};

}  // namespace aliquot
