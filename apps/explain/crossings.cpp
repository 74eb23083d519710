#include "apps/explain/crossings.h"

#include <fmt/format.h>
#include <tuple>

namespace aliquot {
namespace {

using Members = const std::vector<int>*;

struct ByContent {
  bool operator()(Members a, Members b) const { return *a < *b; }
};

/// Ranks number groups as they come; what two ranks share is the members, and the how-manieth group of them it is. Members may be
/// many, and collectives that name them too: they are never copied.
class Groups {
 public:
  /// What the record's groups are called for all ranks.
  std::vector<int> of(const FlightRecord& record) {
    std::map<Members, size_t, ByContent> met;
    std::vector<int> groups;
    for (const std::vector<int>& members : record.groups) {
      std::vector<int>& alike = alike_[&members];
      const size_t ordinal = met[&members]++;
      if (ordinal == alike.size()) alike.push_back(count_++);
      groups.push_back(alike[ordinal]);
    }
    return groups;
  }

 private:
  std::map<Members, std::vector<int>, ByContent> alike_;
  int count_ = 0;
};

using Place = std::tuple<bool, int, Lane, uint64_t>;

void add(std::map<Place, Crossing>& crossings, const FlightRecord& record, const std::vector<int>& called,
         const FlightEntry& entry) {
  const auto number = static_cast<size_t>(entry.group);
  Crossing& crossing = crossings[{entry.is_meeting, called[number], entry.lane, entry.sequence}];
  crossing.group = called[number];
  crossing.members = &record.groups[number];
  crossing.lane = entry.lane;
  crossing.sequence = entry.sequence;
  crossing.is_meeting = entry.is_meeting;
  crossing.by_rank[record.rank] = &entry;
}

}  // namespace

bool in_one_order(const Crossing& a, const Crossing& b) {
  return a.is_meeting == b.is_meeting && a.group == b.group && a.lane == b.lane;
}

std::vector<Crossing> crossings_of(const std::vector<FlightRecord>& records) {
  Groups groups;
  std::map<Place, Crossing> crossings;
  for (const FlightRecord& record : records) {
    const std::vector<int> called = groups.of(record);
    for (const FlightEntry& entry : record.entries) add(crossings, record, called, entry);
    for (const FlightEntry& meeting : record.meetings) add(crossings, record, called, meeting);
  }
  std::vector<Crossing> in_order;
  for (auto& [place, crossing] : crossings) in_order.push_back(std::move(crossing));
  return in_order;
}

std::string place_text(const Crossing& crossing) {
  if (crossing.is_meeting) return fmt::format("meeting #{}", crossing.sequence);
  return fmt::format("collective #{} of the {} lane", crossing.sequence, name(crossing.lane));
}

double waited_seconds(const FlightEntry& entry, const FlightRecord& record) {
  if (entry.begun < 0) return -1;
  return (entry.ended < 0 ? record.written : entry.ended) - entry.begun;
}

std::string operation_text(const FlightEntry& entry) {
  return (entry.is_meeting ? "meeting" : entry.what.text()) + label_text(entry.unit, entry.step);
}

}  // namespace aliquot
