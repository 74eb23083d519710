#pragma once
// Matches the collectives in the flight records of all ranks.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sharding/flight/flight_file.h"

namespace aliquot {

/// One collective or one rendezvous, as each rank recorded it.
struct CollectiveRecord {
  int group = 0;                              // index of the group, the same for all ranks
  const std::vector<int>* members = nullptr;  // ranks of the group, as ranks in the world
  std::string_view group_name;                // the name given to Communicator::split(); may be empty
  Lane lane = Lane::kCompute;
  uint64_t sequence = 0;  // from 1; collectives are counted per group and lane, rendezvous per group
  bool is_rendezvous = false;
  std::map<int, const FlightEntry*> by_rank;  // the entries of the ranks that recorded this collective
};

/// Whether all ranks issue `a` and `b` in the same order: both are in one lane of one group, or both are rendezvous of
/// one group.
bool in_same_order(const CollectiveRecord& a, const CollectiveRecord& b);

/// All recorded collectives and rendezvous. Collectives that all ranks issue in the same order (in_same_order()) are
/// adjacent and sorted by sequence. The result points into `records`, which must outlive it.
std::vector<CollectiveRecord> match_collectives(const std::vector<FlightRecord>& records);

/// Returns text such as " of the shard group of replica 1". Returns "" for the world and for a group without a name.
std::string group_name_text(std::string_view name);

/// The name of the group with index `group` in the record, or "" if the group has no name.
std::string_view name_of_group(const FlightRecord& record, int group);

/// Returns, for example, "collective #13 of the reduce lane" or "rendezvous #7".
std::string collective_text(const CollectiveRecord& collective);

/// Seconds from the start of the collective to its end, or to the writing of the record if it had not ended. Negative
/// if it never started.
double waited_seconds(const FlightEntry& entry, const FlightRecord& record);

/// Returns, for example, "reduce-scatter of 256 float32 (h.1, step 3)" or "rendezvous (save, step 20)".
std::string operation_text(const FlightEntry& entry);

}  // namespace aliquot
