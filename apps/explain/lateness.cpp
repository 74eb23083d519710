#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <utility>
#include <vector>

#include "apps/explain/findings.h"

namespace aliquot {
namespace {

/// The start and the end of a wait in seconds, on the clock of the rank that waited.
using Span = std::pair<double, double>;

/// The waits that one rank caused because it arrived last, over all collectives that every member reached.
struct StragglerWaits {
  std::map<int, std::vector<Span>> waits;  // keyed by the rank that waited
  int count = 0;                           // the number of collectives at which this rank arrived last
  double most_seconds = 0;
  const FlightEntry* most = nullptr;
};

double union_seconds(std::vector<Span> spans) {
  std::ranges::sort(spans);
  double seconds = 0, until = spans.front().first;
  for (const auto& [from, to] : spans) {
    seconds += std::max(to - std::max(from, until), 0.0);
    until = std::max(until, to);
  }
  return seconds;
}

/// Seconds from the first collective that the rank started to the writing of its record.
double recorded_seconds(const FlightRecord& record) {
  double first = record.written;
  for (const FlightEntry& entry : record.entries) {
    if (entry.begun >= 0) first = std::min(first, entry.begun);
  }
  return record.written - first;
}

void add_wait_times(const Evidence& evidence, const CollectiveRecord& collective, std::map<int, StragglerWaits>& late) {
  // A background thread may wait in a rendezvous without delaying training, for instance during an asynchronous save.
  if (collective.is_rendezvous || collective.members->size() < 2 ||
      collective.by_rank.size() < collective.members->size())
    return;
  std::map<int, double> waited;
  for (const auto& [rank, entry] : collective.by_rank) {
    const double seconds = waited_seconds(*entry, evidence.of(rank));
    if (seconds < 0 || (evidence.ended_by_launcher && entry->ended < 0))
      return;  // the launcher ended the ranks one after the other, so these waits do not show a straggler
    waited[rank] = seconds;
  }
  const auto by_seconds = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto [last, least] = *std::ranges::min_element(waited, by_seconds);
  StragglerWaits& of_last = late[last];
  ++of_last.count;
  for (const auto& [rank, seconds] : waited) {
    const double begun = collective.by_rank.at(rank)->begun;
    if (rank != last) of_last.waits[rank].emplace_back(begun, begun + seconds - least);
  }
  const double most = std::ranges::max_element(waited, by_seconds)->second - least;
  if (most < of_last.most_seconds) return;
  of_last.most_seconds = most;
  of_last.most = collective.by_rank.at(last);
}

}  // namespace

std::string late_ranks_text(const Evidence& evidence) {
  constexpr double kMinimumShare = 0.1, kMinimumSeconds = 0.05;
  std::map<int, StragglerWaits> late;
  for (const CollectiveRecord& collective : evidence.collectives) add_wait_times(evidence, collective, late);
  int count = 0;
  for (const auto& [rank, of_rank] : late) count += of_rank.count;
  std::string text;
  for (const auto& [rank, of_rank] : late) {
    double seconds = 0, recorded = 0;
    for (const auto& [other, spans] : of_rank.waits) {
      const double waited = union_seconds(spans);
      if (waited > seconds) seconds = waited, recorded = recorded_seconds(evidence.of(other));
    }
    if (seconds < std::max(kMinimumSeconds, kMinimumShare * recorded)) continue;
    text += fmt::format(
        "Rank {} was the last to reach {} of {} collectives. Of the other ranks, one waited {:.1f} s for this rank, of "
        "{:.1f} s in its record; the longest single wait was {:.1f} s, in {}.\n",
        rank, of_rank.count, count, seconds, recorded, of_rank.most_seconds, operation_text(*of_rank.most));
  }
  return text;
}

}  // namespace aliquot
