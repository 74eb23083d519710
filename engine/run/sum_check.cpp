#include "engine/run/sum_check.h"

#include <algorithm>
#include <fmt/format.h>
#include <set>

#include "engine/run/replay_finding.h"
#include "sharding/comm/collective_purpose.h"

namespace aliquot {
namespace {

constexpr std::array kSummingGroups{GroupId::kShard, GroupId::kReplica};

std::string bytes_of_all(const std::vector<uint64_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(uint64_t)};
}

/// Of three ranks that computed the same sums, returns the one that two others contradict. If all three differ, or if
/// there are only two, returns all of them.
std::vector<int> suspects(const std::vector<int>& ranks, const std::vector<uint64_t>& values) {
  if (ranks.size() < 3) return ranks;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (values[(i + 1) % 3] == values[(i + 2) % 3]) return {ranks[i]};
  }
  return ranks;
}

}  // namespace

SumCheck::SumCheck(const Plan& plan, const MeshGroups& groups, const StepMemory& memory, const HostView& view)
    : plan_(plan), groups_(groups), memory_(memory), view_(view) {}

/// The digests of the own sums of a flat buffer (repetition 0) or of a repetition.
std::vector<uint64_t> SumCheck::digests(const RepeatedSums& repeated, int32_t flat, int repetition) const {
  std::vector<uint64_t> values(static_cast<std::size_t>(repeated.block_count));
  constexpr int64_t kBytes = sizeof(uint64_t);
  view_.fetch(values.data(), memory_.peek(repeated.digests, flat) + repeated.first_digest(repetition) * kBytes,
              repeated.block_count * kBytes);
  return values;
}

/// The sums of the digests of one flat buffer. 0 without repetitions.
SumCheck::Values SumCheck::values_of(GroupId group, int32_t flat) const {
  Values values{};
  const RepeatedSums repeated = repeated_sums(plan_, group, flat);
  if (repeated.count == 0) return values;
  for (int i = 0; i <= repeated.count; ++i) {
    uint64_t& sum = values[static_cast<std::size_t>(i)];
    for (const uint64_t digest : digests(repeated, flat, i)) sum = with_value(sum, digest);
  }
  return values;
}

/// The sums of the digests of all flat buffers, for each group.
SumCheck::OfRank SumCheck::own() const {
  OfRank own{};
  for (std::size_t g = 0; g < kSummingGroups.size(); ++g) {
    own.repetitions[g] = repetition_count(plan_, kSummingGroups[g]);
    for (int32_t f = 0; f < static_cast<int32_t>(plan_.flats.size()); ++f) {
      if (!plan_.trains(f)) continue;
      const Values of_flat = values_of(kSummingGroups[g], f);
      for (std::size_t i = 0; i < of_flat.size(); ++i) own.values[g][i] = with_value(own.values[g][i], of_flat[i]);
    }
  }
  return own;
}

/// Compares the sums of every rank with their repetitions.
std::vector<SumCheck::Difference> SumCheck::differences(const std::vector<OfRank>& all) const {
  std::vector<Difference> found;
  for (std::size_t g = 0; g < kSummingGroups.size(); ++g) {
    for (int owner = 0; owner < static_cast<int>(all.size()); ++owner) {
      const auto repetitions = static_cast<int>(all[static_cast<std::size_t>(owner)].repetitions[g]);
      if (repetitions == 0) continue;
      Difference difference{.group = kSummingGroups[g], .owner = owner, .ranks = {}};
      const std::vector<int> members = groups_.mesh().members(kSummingGroups[g], owner);
      const auto count = static_cast<int>(members.size());
      const auto index = static_cast<int>(std::ranges::find(members, owner) - members.begin());
      std::vector<uint64_t> values;
      for (int i = 0; i <= repetitions; ++i) {
        const int rank = members[static_cast<std::size_t>((index + count - i) % count)];
        difference.ranks.push_back(rank);
        values.push_back(all[static_cast<std::size_t>(rank)].values[g][static_cast<std::size_t>(i)]);
      }
      if (std::ranges::count(values, values.front()) == repetitions + 1) continue;
      difference.suspects = suspects(difference.ranks, values);
      found.push_back(std::move(difference));
    }
  }
  return found;
}

/// Finds the first flat buffer, and its first block, in which the sums of the ranks differ. Collective.
FirstDifference SumCheck::locate(const Difference& difference) const {
  const auto own_index = std::ranges::find(difference.ranks, groups_.world().rank()) - difference.ranks.begin();
  const bool is_involved = own_index < std::ssize(difference.ranks);
  // Returns the first index at which the values that the involved ranks pass differ.
  const auto first_difference = [&](const std::vector<uint64_t>& own) {
    const std::vector<std::string> all =
        groups_.world().communicator().gather_objects(is_involved ? bytes_of_all(own) : std::string());
    const std::string& left = all[static_cast<std::size_t>(difference.ranks.front())];
    int64_t first = std::ssize(left) / int64_t{sizeof(uint64_t)};
    for (const int rank : difference.ranks) {
      const std::string& right = all[static_cast<std::size_t>(rank)];
      const auto at = std::ranges::mismatch(left, right).in1 - left.begin();
      first = std::min(first, at / int64_t{sizeof(uint64_t)});
    }
    return first;
  };
  std::vector<uint64_t> values;
  for (int32_t f = 0; f < static_cast<int32_t>(plan_.flats.size()) && is_involved; ++f)
    values.push_back(plan_.trains(f) ? values_of(difference.group, f)[static_cast<std::size_t>(own_index)] : 0);
  FirstDifference first{.flat = static_cast<int32_t>(first_difference(values)), .owner = difference.owner};
  const RepeatedSums repeated = repeated_sums(plan_, difference.group, first.flat);
  values.clear();
  if (is_involved) values = digests(repeated, first.flat, static_cast<int>(own_index));
  const MeshCoordinates at = groups_.mesh().coordinates(difference.owner);
  first.block = first_difference(values) + at.shard * plan_.flats[first.flat].layout.shard_count() / kBlockElements +
                (difference.group == GroupId::kReplica ? at.replica * repeated.block_count : 0);
  return first;
}

void SumCheck::require_equal(int64_t step) const {
  const ScopedCollectivePurpose purpose("compare repeated sums");
  std::vector<OfRank> all;
  for (const std::string& bytes : groups_.world().communicator().gather_objects(bytes_of(own())))
    all.push_back(from_bytes<OfRank>(bytes).front());
  const std::vector<Difference> found = differences(all);
  if (found.empty()) return;
  std::set<int> ranks;
  for (const Difference& difference : found) ranks.insert(difference.suspects.begin(), difference.suspects.end());
  const bool is_decided = std::ranges::all_of(found, [](const Difference& each) { return each.suspects.size() == 1; });
  const FirstDifference first = locate(found.front());
  throw_replay_error(plan_, groups_, first, {.ranks = {ranks.begin(), ranks.end()}, .is_decided = is_decided},
                     "a wrong sum of gradients over ranks", step);
}

}  // namespace aliquot
