#pragma once
// Collectives of all ranks side by side: who came to which, with what.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sharding/flight/flight_file.h"

namespace aliquot {

/// The `sequence`-th collective of one lane of one group, or meeting of the group, as each rank noted it.
struct CollectiveRecord {
  int group = 0;                              // the same for all ranks
  const std::vector<int>* members = nullptr;  // the group's, by their ranks in the world
  Lane lane = Lane::kCompute;
  uint64_t sequence = 0;
  bool is_rendezvous = false;
  std::map<int, const FlightEntry*> by_rank;  // of those that issued it
};

/// Whether ranks come to the one and the other in one order: of one lane of one group, or both of the group's meetings.
bool in_same_order(const CollectiveRecord& a, const CollectiveRecord& b);

/// Those that ranks come to in one order stand together, by sequence. They point into the records, which outlive them.
std::vector<CollectiveRecord> match_collectives(const std::vector<FlightRecord>& records);

/// "collective #13 of the reduce lane", "meeting #7".
std::string collective_text(const CollectiveRecord& collective);

/// Seconds that a rank had waited in it when it ended, or when the record was written; negative: it never began.
double waited_seconds(const FlightEntry& entry, const FlightRecord& record);

/// "reduce-scatter of 256 float32 (h.1, step 3)", "meeting (save, step 20)".
std::string operation_text(const FlightEntry& entry);

}  // namespace aliquot
