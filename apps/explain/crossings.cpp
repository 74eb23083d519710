#include "apps/explain/crossings.h"

#include <fmt/format.h>

namespace aliquot {

std::vector<Crossing> crossings_of(const std::vector<FlightRecord>& records) {
  // Ranks number groups as they come; what two ranks share is the members, and the how-manieth group of them it is.
  using Place = std::tuple<std::vector<int>, int, Lane, uint64_t>;
  std::map<Place, Crossing> crossings;
  for (const FlightRecord& record : records) {
    std::map<std::vector<int>, int> made;
    std::vector<int> ordinals;
    for (const std::vector<int>& members : record.groups) ordinals.push_back(made[members]++);
    for (const FlightEntry& entry : record.entries) {
      const std::vector<int>& members = record.groups[static_cast<size_t>(entry.group)];
      Crossing& crossing = crossings[{members, ordinals[static_cast<size_t>(entry.group)], entry.lane, entry.sequence}];
      crossing.members = members;
      crossing.lane = entry.lane;
      crossing.sequence = entry.sequence;
      crossing.by_rank[record.rank] = &entry;
    }
  }
  std::vector<Crossing> in_order;
  for (auto& [place, crossing] : crossings) in_order.push_back(std::move(crossing));
  return in_order;
}

double waited_seconds(const FlightEntry& entry, const FlightRecord& record) {
  if (entry.begun < 0) return -1;
  return (entry.ended < 0 ? record.written : entry.ended) - entry.begun;
}

std::string operation_text(const FlightEntry& entry) { return entry.what.text() + label_text(entry.unit, entry.step); }

}  // namespace aliquot
