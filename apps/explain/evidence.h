#pragma once
// All that is known of a run that failed.

#include <map>
#include <vector>

#include "apps/explain/collectives.h"
#include "sharding/flight/flight_file.h"

namespace aliquot {

/// The records of a run's ranks, one or more, a rank each, and what follows from them. Points into itself.
struct Evidence {
  explicit Evidence(std::vector<FlightRecord> flights);
  Evidence(const Evidence&) = delete;
  Evidence& operator=(const Evidence&) = delete;

  const FlightRecord& of(int rank) const { return *by_rank.at(rank); }
  bool has(int rank) const { return by_rank.contains(rank); }
  /// Whether its record was cut short: what that lacks may have come.
  bool is_truncated(int rank) const { return has(rank) && !of(rank).complete; }
  /// Whether it is known when ranks came to it, or else only who issued it.
  bool is_timed(const CollectiveRecord& collective) const { return timed || collective.is_rendezvous; }
  /// Whether the rank that noted it came to it, as far as that is known.
  bool has_reached(const FlightEntry& entry) const { return !timed || entry.begun >= 0; }

  std::vector<FlightRecord> records;  // by rank
  std::map<int, const FlightRecord*> by_rank;
  std::vector<CollectiveRecord> collectives;
  /// Streams noted when they began and ended collectives; a GPU's do not, and who issued them is all that is known.
  bool timed;
  bool ended_by_launcher;  // every rank that left a record was ended by the launcher, and none of them failed
};

}  // namespace aliquot
