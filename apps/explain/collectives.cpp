#include "apps/explain/collectives.h"

#include <fmt/format.h>
#include <tuple>

namespace aliquot {
namespace {

using Members = const std::vector<int>*;

struct MembersLess {
  bool operator()(Members a, Members b) const { return *a < *b; }
};

/// Gives each group an index that is the same for all ranks. Each rank numbers its groups independently. Groups in two
/// records are the same if they have the same members and each is the n-th group with these members in its record.
/// Stores pointers to the member lists, because copies would be large.
class Groups {
 public:
  /// Returns the index of each group of the record. This index is the same for all ranks.
  std::vector<int> of(const FlightRecord& record) {
    std::map<Members, size_t, MembersLess> count_with_members;
    std::vector<int> numbers;
    for (const std::vector<int>& members : record.groups) {
      std::vector<int>& same_members = ids_[&members];
      const size_t ordinal = count_with_members[&members]++;
      if (ordinal == same_members.size()) same_members.push_back(count_++);
      numbers.push_back(same_members[ordinal]);
    }
    return numbers;
  }

 private:
  std::map<Members, std::vector<int>, MembersLess> ids_;
  int count_ = 0;
};

using Place = std::tuple<bool, int, Lane, uint64_t>;

void add(std::map<Place, CollectiveRecord>& collectives, const FlightRecord& record,
         const std::vector<int>& group_numbers, const FlightEntry& entry) {
  const auto number = static_cast<size_t>(entry.group);
  CollectiveRecord& collective = collectives[{entry.is_rendezvous, group_numbers[number], entry.lane, entry.sequence}];
  collective.group = group_numbers[number];
  collective.members = &record.groups[number];
  if (collective.group_name.empty()) collective.group_name = name_of_group(record, entry.group);
  collective.lane = entry.lane;
  collective.sequence = entry.sequence;
  collective.is_rendezvous = entry.is_rendezvous;
  collective.by_rank[record.rank] = &entry;
}

}  // namespace

bool in_same_order(const CollectiveRecord& a, const CollectiveRecord& b) {
  return a.is_rendezvous == b.is_rendezvous && a.group == b.group && a.lane == b.lane;
}

std::vector<CollectiveRecord> match_collectives(const std::vector<FlightRecord>& records) {
  Groups groups;
  std::map<Place, CollectiveRecord> collectives;
  for (const FlightRecord& record : records) {
    const std::vector<int> group_numbers = groups.of(record);
    for (const FlightEntry& entry : record.entries) add(collectives, record, group_numbers, entry);
    for (const FlightEntry& rendezvous : record.rendezvous) add(collectives, record, group_numbers, rendezvous);
  }
  std::vector<CollectiveRecord> in_order;
  for (auto& [place, collective] : collectives) in_order.push_back(std::move(collective));
  return in_order;
}

std::string group_name_text(std::string_view name) { return name == "world" ? "" : group_text(name); }

std::string_view name_of_group(const FlightRecord& record, int group) {
  const auto number = static_cast<size_t>(group);
  return number < record.group_names.size() ? std::string_view(record.group_names[number]) : std::string_view();
}

std::string collective_text(const CollectiveRecord& collective) {
  if (collective.is_rendezvous) return fmt::format("rendezvous #{}", collective.sequence);
  return fmt::format("collective #{} of the {} lane", collective.sequence, name(collective.lane));
}

double waited_seconds(const FlightEntry& entry, const FlightRecord& record) {
  if (entry.begun < 0) return -1;
  return (entry.ended < 0 ? record.written : entry.ended) - entry.begun;
}

std::string operation_text(const FlightEntry& entry) {
  return (entry.is_rendezvous ? "rendezvous" : entry.what.text()) + label_text(entry.unit, entry.step);
}

}  // namespace aliquot
