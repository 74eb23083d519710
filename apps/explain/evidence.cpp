#include "apps/explain/evidence.h"

#include <algorithm>

namespace aliquot {
namespace {

bool has_times(const FlightRecord& record) {
  return std::ranges::any_of(record.entries, [](const FlightEntry& entry) { return entry.begun >= 0; });
}

bool was_ended_by_launcher(const FlightRecord& record) { return record.why.starts_with(kEndedByLauncher); }

}  // namespace

Evidence::Evidence(std::vector<FlightRecord> flights)
    : records(std::move(flights)),
      timed(std::ranges::any_of(records, has_times)),
      ended_by_launcher(std::ranges::all_of(records, was_ended_by_launcher)) {
  std::ranges::sort(records, {}, &FlightRecord::rank);
  for (const FlightRecord& record : records) by_rank[record.rank] = &record;
  collectives = match_collectives(records);
}

}  // namespace aliquot
