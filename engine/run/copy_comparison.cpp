#include "engine/run/copy_comparison.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fmt/format.h>
#include <map>
#include <span>

#include "engine/plan/sizes.h"
#include "engine/plan/slices.h"
#include "kernels/system/booking.h"

namespace aliquot {
namespace {

constexpr std::array kKinds = {std::pair{Role::kParameters, "parameters"}, std::pair{Role::kMaster, "masters"},
                               std::pair{Role::kOptimizer, "optimizer state"}};

uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 29;
}

/// Computes a hash in four independent chains, so that its speed is limited by memory bandwidth and not by the latency
/// of multiplications. Each update of a chain is invertible, so a change of a single word always changes the hash.
uint64_t hash_of(uint64_t seed, std::span<const std::byte> bytes) {
  std::array<uint64_t, 4> lanes = {seed, seed + 1, seed + 2, seed + 3};
  std::array<uint64_t, 4> words;
  for (; bytes.size() >= sizeof words; bytes = bytes.subspan(sizeof words)) {
    std::memcpy(words.data(), bytes.data(), sizeof words);
    for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = mixed(lanes[i], words[i]);
  }
  words = {};
  std::memcpy(words.data(), bytes.data(), bytes.size());
  for (std::size_t i = 0; i < lanes.size(); ++i) seed = mixed(mixed(lanes[i], words[i]), seed);
  return seed;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return text;
}

/// Describes which ranks have a hash that differs from the hash of the majority.
std::string describe_difference(std::string_view kind, const std::map<uint64_t, std::vector<int>>& ranks_by_hash) {
  const auto by_size = [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); };
  const auto most = std::ranges::max_element(ranks_by_hash, by_size);
  std::vector<int> others;
  for (const auto& [hash, ranks] : ranks_by_hash) {
    if (hash != most->first) others.insert(others.end(), ranks.begin(), ranks.end());
  }
  std::ranges::sort(others);
  if (others.size() >= most->second.size()) {
    const auto& [first, second] = std::minmax(others, most->second);
    return fmt::format("the {} of {} and of {} differ, and it is unknown which are correct", kind, ranks_text(first),
                       ranks_text(second));
  }
  return fmt::format("the {} of {} differ from those of {}", kind, ranks_text(others), ranks_text(most->second));
}

}  // namespace

uint64_t CopyComparison::hash(uint64_t seed, const std::byte* at, int64_t size_bytes) const {
  if (view_.is_host_addressable(at)) return hash_of(seed, {at, static_cast<std::size_t>(size_bytes)});
  const int64_t most = std::max<int64_t>(1, plan_.schedule.stream_bytes);
  const Booking booking(view_.device().ledger(), plan_.schedule.stream_bytes, Category::kStaging, "copies compared");
  std::vector<std::byte> part(static_cast<std::size_t>(std::min(size_bytes, most)));
  for (int64_t done = 0; done < size_bytes; done += most) {
    const int64_t count = std::min(most, size_bytes - done);
    view_.fetch(part.data(), at + done, count);
    seed = hash_of(seed, {part.data(), static_cast<std::size_t>(count)});
  }
  return seed;
}

/// Excludes padding, because model code may change it.
uint64_t CopyComparison::hash_of_parameters(uint64_t seed, int32_t flat, const std::byte* at) const {
  const FlatLayout& layout = plan_.flats[flat].layout;
  const int own = groups_.shard_group().rank();
  const bool whole = plan_.schedule.zero_stage < 3;
  const int64_t bytes = element_bytes(plan_.policy.precision.compute);
  for (int r = whole ? 0 : own; r <= (whole ? layout.rank_count() - 1 : own); ++r) {
    const int64_t shard = whole ? r * layout.shard_count() : 0;
    for (const Piece& piece : slice_pieces(plan_, flat, r, groups_.coordinates().tensor))
      seed = hash(seed, at + (shard + piece.shard_offset) * bytes, piece.count * bytes);
  }
  return seed;
}

/// Returns hashes, ordered by unit, then by kind, of data of which all ranks of the group hold copies.
std::vector<uint64_t> CopyComparison::hashes(GroupId group) const {
  const int stage = plan_.schedule.zero_stage;
  const bool of_shards = group != GroupId::kShard;
  std::vector<uint64_t> hashes(plan_.model.units.size() * kKinds.size(), 0);
  for (int32_t f = 0; f < static_cast<int32_t>(plan_.flats.size()); ++f) {
    if (group == GroupId::kTensor && plan_.flats[f].gradients == TensorGradients::kSlice) continue;
    for (std::size_t k = 0; k < kKinds.size(); ++k) {
      const Role role = kKinds[k].first;
      const bool whole = role == Role::kParameters ? stage < 3 : stage == 0;
      const std::byte* at = memory_.address_between_steps(role, f);
      if (at == nullptr || (!of_shards && !whole)) continue;
      uint64_t& of_unit = hashes[static_cast<std::size_t>(plan_.flats[f].unit) * kKinds.size() + k];
      of_unit = role == Role::kParameters ? hash_of_parameters(of_unit, f, at)
                                          : hash(of_unit, at, needed_bytes(plan_, role, f));
    }
  }
  return hashes;
}

std::string CopyComparison::compare(GroupId group, const std::vector<uint64_t>& own) const {
  const std::string bytes(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(uint64_t));
  const auto all = groups_.at(group).gather_objects(bytes);
  const std::vector<int> global_ranks = groups_.mesh().members(group, groups_.world().rank());
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::map<uint64_t, std::vector<int>> ranks_by_hash;
    for (std::size_t r = 0; r < all.size(); ++r) {
      uint64_t theirs = 0;
      std::memcpy(&theirs, all[r].data() + i * sizeof theirs, sizeof theirs);
      ranks_by_hash[theirs].push_back(global_ranks[r]);
    }
    if (ranks_by_hash.size() == 1) continue;
    return fmt::format("in unit {} {}", plan_.model.units[i / kKinds.size()].name,
                       describe_difference(kKinds[i % kKinds.size()].second, ranks_by_hash));
  }
  return {};
}

std::string CopyComparison::difference() const {
  std::string own = compare(GroupId::kShard, hashes(GroupId::kShard));
  for (const GroupId group : {GroupId::kReplica, GroupId::kTensor}) {
    if (groups_.mesh().size(group) == 1) continue;
    const std::string across = compare(group, hashes(group));
    if (own.empty()) own = across;
  }
  for (const std::string& found : groups_.world().communicator().gather_objects(own)) {
    if (!found.empty()) return found;
  }
  return {};
}

}  // namespace aliquot
