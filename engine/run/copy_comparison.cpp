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
#include "kernels/system/host_name.h"

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
  std::ranges::copy(bytes, std::as_writable_bytes(std::span(words)).begin());
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

/// Whether all ranks of the group hold copies of the data.
bool CopyComparison::is_compared(GroupId group, int32_t flat, Role role) const {
  if (group == GroupId::kTensor && plan_.flats[flat].gradients == TensorGradients::kSlice) return false;
  const int stage = plan_.schedule.zero_stage;
  const bool whole = role == Role::kParameters ? stage < 3 : stage == 0;
  return (whole || group != GroupId::kShard) && memory_.address_between_steps(role, flat) != nullptr;
}

/// Returns hashes, ordered by unit, then by kind, of data of which all ranks of the group hold copies.
std::vector<uint64_t> CopyComparison::hashes(GroupId group) const {
  std::vector<uint64_t> hashes(plan_.model.units.size() * kKinds.size(), 0);
  for (int32_t f = 0; f < static_cast<int32_t>(plan_.flats.size()); ++f) {
    for (std::size_t k = 0; k < kKinds.size(); ++k) {
      const Role role = kKinds[k].first;
      if (!is_compared(group, f, role)) continue;
      const std::byte* at = memory_.address_between_steps(role, f);
      uint64_t& of_unit = hashes[static_cast<std::size_t>(plan_.flats[f].unit) * kKinds.size() + k];
      of_unit = role == Role::kParameters ? hash_of_parameters(of_unit, f, at)
                                          : hash(of_unit, at, needed_bytes(plan_, role, f));
    }
  }
  return hashes;
}

/// Adds the blocks of one flat buffer. Excludes the padding of parameters.
void CopyComparison::add_blocks(std::vector<Block>& blocks, int32_t flat, Role role, const std::byte* at) const {
  const FlatLayout& layout = plan_.flats[flat].layout;
  const int own = groups_.shard_group().rank();
  if (role == Role::kParameters) {
    const bool whole = plan_.schedule.zero_stage < 3;
    const int64_t bytes = element_bytes(plan_.policy.precision.compute);
    for (int r = whole ? 0 : own; r <= (whole ? layout.rank_count() - 1 : own); ++r) {
      for (const Piece& piece : slice_pieces(plan_, flat, r, groups_.coordinates().tensor)) {
        const int64_t in_memory = (whole ? r * layout.shard_count() : 0) + piece.shard_offset;
        const int64_t in_flat = r * layout.shard_count() + piece.shard_offset;
        for (int64_t e = 0; e < piece.count; e += kBlockElements) {
          const int64_t count = std::min(kBlockElements, piece.count - e);
          blocks.push_back(
              {flat, (in_flat + e) / kBlockElements, hash(0, at + (in_memory + e) * bytes, count * bytes)});
        }
      }
    }
    return;
  }
  const int64_t size = needed_bytes(plan_, role, flat), count = plan_.updated_count(flat) / kBlockElements;
  const int64_t bytes = count == 0 ? size : size / count;
  const int64_t first = plan_.schedule.zero_stage == 0 ? 0 : own * count;
  for (int64_t b = 0; b < count; ++b) blocks.push_back({flat, first + b, hash(0, at + b * bytes, bytes)});
}

std::vector<CopyComparison::Block> CopyComparison::blocks(GroupId group, std::size_t index) const {
  std::vector<Block> blocks;
  const Role role = kKinds[index % kKinds.size()].first;
  for (int32_t f = 0; f < static_cast<int32_t>(plan_.flats.size()); ++f) {
    if (static_cast<std::size_t>(plan_.flats[f].unit) == index / kKinds.size() && is_compared(group, f, role))
      add_blocks(blocks, f, role, memory_.address_between_steps(role, f));
  }
  return blocks;
}

/// Collective over the group. Names the first block whose copies differ.
std::string CopyComparison::first_block_text(GroupId group, std::size_t index) const {
  const std::vector<Block> own = blocks(group, index);
  std::string hashes;
  for (const Block& block : own) hashes.append(reinterpret_cast<const char*>(&block.hash), sizeof block.hash);
  const auto all = groups_.at(group).gather_objects(hashes);
  for (std::size_t b = 0; b < own.size(); ++b) {
    const auto of = [&](const std::string& rank) { return rank.substr(b * sizeof(uint64_t), sizeof(uint64_t)); };
    if (std::ranges::all_of(all, [&](const std::string& rank) { return of(rank) == of(all[0]); })) continue;
    // Optimizer state has several values for each element, so its blocks have no elements.
    if (kKinds[index % kKinds.size()].first == Role::kOptimizer)
      return fmt::format("; part {} of {} of the state is the first that differs", b + 1, own.size());
    return fmt::format("; block {} of its flat buffer, {}, is the first that differs", own[b].index,
                       block_text(plan_, own[b].flat, own[b].index, groups_.coordinates().tensor));
  }
  return "";
}

/// Collective over the group. Says on which machines its ranks are.
std::string CopyComparison::nodes_text(GroupId group) const {
  const auto hosts = groups_.at(group).gather_objects(host_name());
  const std::vector<int> ranks = groups_.mesh().members(group, groups_.world().rank());
  constexpr std::size_t kMostNamed = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(hosts.size(), kMostNamed); ++i) {
    text += fmt::format("; rank {} is on node {}, host {}", ranks[i],
                        plan_.world.node_of_rank[static_cast<std::size_t>(ranks[i])], hosts[i]);
  }
  return text;
}

/// Collective over the group. Describes the data of hash number `index`, which differs between ranks of the group.
std::string CopyComparison::difference_text(GroupId group, std::size_t index,
                                            const std::map<uint64_t, std::vector<int>>& ranks_by_hash) const {
  return fmt::format("in unit {} {}{}{}", plan_.model.units[index / kKinds.size()].name,
                     describe_difference(kKinds[index % kKinds.size()].second, ranks_by_hash),
                     first_block_text(group, index), nodes_text(group));
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
    return difference_text(group, i, ranks_by_hash);
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
