#include "engine/run/replay_check.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <set>

#include "engine/run/replay_finding.h"
#include "sharding/comm/collective_purpose.h"

namespace aliquot {
namespace {

int64_t forward_position(const PipelineStage&, const VirtualStage& run) { return run.index; }
int64_t backward_position(const PipelineStage& stage, const VirtualStage& run) {
  return 2 * int64_t{stage.run_count} - 1 - run.index;
}

}  // namespace

int64_t position_of_send(const PipelineStage& stage, const Operation& send) {
  const bool forward = transfers_activations(send.verb);
  const auto run = std::ranges::find_if(stage.runs, [&](const VirtualStage& each) {
    return send.operand == (forward ? each.last_use() : each.first_use - 1);
  });
  return forward ? forward_position(stage, *run) : backward_position(stage, *run);
}

ReplayCheck::ReplayCheck(const Plan& plan, const MeshGroups& groups, const StepMemory& memory, const HostView& view)
    : plan_(plan),
      groups_(groups),
      memory_(memory),
      view_(view),
      rank_(groups.world().rank()),
      data_count_(groups.mesh().replica * groups.mesh().shard) {
  for (const Operation& operation : plan.schedule.operations) {
    if (operation.verb != Verb::kDigestGradients) continue;
    const auto uses_unit = [&](int32_t use) { return std::ranges::count(plan.model.uses[use], operation.operand) > 0; };
    int64_t position = 0;
    for (const VirtualStage& run : plan.stage.runs) {
      for (int32_t use = run.first_use; use < run.end_use; ++use) {
        if (uses_unit(use)) position = std::max(position, backward_position(plan.stage, run));
      }
    }
    for (const int32_t f : plan.flats_of_unit[operation.operand]) {
      if (!plan.flats[f].trainable) continue;
      flats_.push_back(f);
      positions_.push_back(position);
    }
  }
}

int ReplayCheck::data_of(int rank) const {
  const MeshCoordinates at = groups_.mesh().coordinates(rank);
  return at.replica * groups_.mesh().shard + at.shard;
}

int ReplayCheck::with_data(int rank, int data) const {
  const Mesh& mesh = groups_.mesh();
  MeshCoordinates at = mesh.coordinates(rank);
  at.replica = data / mesh.shard;
  at.shard = data % mesh.shard;
  return mesh.rank(at);
}

int ReplayCheck::replayer_of(int owner, int round) const {
  return with_data(owner, (data_of(owner) + data_count_ - round) % data_count_);
}

std::vector<uint64_t> ReplayCheck::digests(int32_t flat, bool replayed) const {
  std::vector<uint64_t> values(static_cast<std::size_t>(block_count(flat)));
  const auto size_bytes = static_cast<int64_t>(values.size() * sizeof(uint64_t));
  view_.fetch(values.data(), memory_.peek(Role::kGradientDigests, flat) + (replayed ? size_bytes : 0), size_bytes);
  return values;
}

uint64_t ReplayCheck::sum_of(int32_t flat, bool replayed) const {
  uint64_t sum = 0;
  for (const uint64_t value : digests(flat, replayed)) sum = with_value(sum, value);
  return sum;
}

std::vector<ReplayCheck::Result> ReplayCheck::gradients_and_loss() const {
  std::vector<Result> all;
  for (std::size_t i = 0; i < flats_.size(); ++i)
    all.push_back({positions_[i], flats_[i], sum_of(flats_[i], false), sum_of(flats_[i], true)});
  const int64_t last_forward = plan_.stage.run_count - 1;
  all.push_back({last_forward, -1, std::bit_cast<uint64_t>(losses_[0]), std::bit_cast<uint64_t>(losses_[1])});
  return all;
}

std::vector<ReplayCheck::Result> ReplayCheck::sends() const {
  std::vector<Result> all;
  for (std::size_t i = 0; i < std::min(sent_[0].size(), sent_[1].size()); ++i)
    all.push_back({sent_[0][i].position, -1, sent_[0][i].sum, sent_[1][i].sum});
  return all;
}

std::vector<ReplayCheck::Sums> ReplayCheck::gather_sums(bool is_valid) const {
  Sums sums{.is_valid = is_valid ? 1 : 0};
  for (const Result& result : gradients_and_loss()) {
    sums.own = with_value(sums.own, result.own);
    sums.replayed = with_value(sums.replayed, result.replayed);
  }
  std::vector<Sums> all;
  for (const std::string& bytes : groups_.world().communicator().gather_objects(bytes_of(sums)))
    all.push_back(from_bytes<Sums>(bytes).front());
  return all;
}

std::vector<std::vector<ReplayCheck::Result>> ReplayCheck::gather(const std::vector<Result>& own) const {
  std::string bytes;
  for (const Result& result : own) bytes += bytes_of(result);
  std::vector<std::vector<Result>> all;
  for (const std::string& of_rank : groups_.world().communicator().gather_objects(bytes))
    all.push_back(from_bytes<Result>(of_rank));
  return all;
}

bool ReplayCheck::differs(bool is_valid) {
  const ScopedCollectivePurpose purpose("compare a replay");
  sums_ = gather_sums(is_valid);
  differences_.clear();
  if (std::ranges::any_of(sums_, [](const Sums& sums) { return sums.is_valid == 0; })) return false;
  for (int owner = 0; owner < static_cast<int>(sums_.size()); ++owner) {
    const int other = replayer_of(owner, 1);
    if (sums_[static_cast<std::size_t>(owner)].own != sums_[static_cast<std::size_t>(other)].replayed)
      differences_.push_back({owner, other});
  }
  if (differences_.empty()) return false;
  locate_passes();
  locate_blocks();
  return true;
}

bool ReplayCheck::is_involved() const {
  return std::ranges::any_of(differences_,
                             [&](const Difference& each) { return each.owner == rank_ || each.other == rank_; });
}

/// Whether a send of ranks with the position of `owner` in the mesh is equal for all data coordinates without a
/// difference. If not, the model leaves a part of the data undefined.
bool ReplayCheck::is_reliable(int owner, std::size_t send) const {
  bool any = false;
  for (int data = 0; data < data_count_; ++data) {
    if (std::ranges::any_of(differences_, [&](const Difference& each) { return data_of(each.owner) == data; }))
      continue;
    const int rank = with_data(owner, data);
    const auto& own = sends_[static_cast<std::size_t>(rank)];
    const auto& replayed = sends_[static_cast<std::size_t>(replayer_of(rank, 1))];
    if (send >= own.size() || send >= replayed.size() || own[send].own != replayed[send].replayed) return false;
    any = true;
  }
  return any;
}

/// A wrong result of a pass makes the results of later passes wrong, also on other pipeline stages. So keeps only the
/// differences of the first pass of each micro-batch. Only the ranks of differences send the sums of gradients, so that
/// the other ranks need little memory.
void ReplayCheck::locate_passes() {
  sends_ = gather(sends());
  const std::vector<std::vector<Result>> all = gather(is_involved() ? gradients_and_loss() : std::vector<Result>());
  std::map<int, int64_t> first;  // for each data coordinate with a difference, the first pass that differs
  for (const Difference& each : differences_) first[data_of(each.owner)] = std::numeric_limits<int64_t>::max();
  std::vector<Difference> found;
  for (int owner = 0; owner < static_cast<int>(sums_.size()); ++owner) {
    const auto of_data = first.find(data_of(owner));
    if (of_data == first.end()) continue;
    found.push_back(located(owner, all));
    of_data->second = std::min(of_data->second, found.back().position);
  }
  uncertain_.clear();
  for (const Difference& each : found) {
    const int64_t position = first.at(data_of(each.owner));
    if (may_have_sent_first(each.owner, position)) uncertain_.push_back(each.owner);
  }
  std::erase_if(found, [&](const Difference& each) { return each.position > first.at(data_of(each.owner)); });
  differences_ = std::move(found);
}

/// Whether `owner` and the rank that repeated its micro-batch sent other data before the pass at `position`.
bool ReplayCheck::may_have_sent_first(int owner, int64_t position) const {
  const auto& own = sends_[static_cast<std::size_t>(owner)];
  const auto& other = sends_[static_cast<std::size_t>(replayer_of(owner, 1))];
  for (std::size_t i = 0; i < std::min(own.size(), other.size()); ++i) {
    if (own[i].position < position && own[i].own != other[i].replayed) return true;
  }
  return false;
}

/// Returns the first difference between the results of `owner` and of the rank that repeated its micro-batch. Its
/// position is the largest number if there is none.
ReplayCheck::Difference ReplayCheck::located(int owner, const std::vector<std::vector<Result>>& all) const {
  Difference difference{
      .owner = owner, .other = replayer_of(owner, 1), .position = std::numeric_limits<int64_t>::max()};
  const auto compare = [&](const std::vector<std::vector<Result>>& results, const auto& found) {
    const auto& own = results[static_cast<std::size_t>(owner)];
    const auto& other = results[static_cast<std::size_t>(difference.other)];
    for (std::size_t i = 0; i < std::min(own.size(), other.size()); ++i) {
      if (own[i].own != other[i].replayed) found(i, own[i]);
    }
  };
  compare(all, [&](std::size_t, const Result& result) {
    difference.position = std::min(difference.position, result.position);
    if (difference.flat < 0) difference.flat = static_cast<int32_t>(result.flat);
  });
  compare(sends_, [&](std::size_t i, const Result& result) {
    if (result.position >= difference.position || !is_reliable(owner, i)) return;
    difference.position = result.position;
    difference.send = static_cast<int32_t>(i);
  });
  return difference;
}

/// A rank sends the digests of one flat buffer for each of its differences: its own ones first, then those of a replay.
void ReplayCheck::locate_blocks() {
  std::string own;
  const auto append = [&](const Difference& difference, bool replayed) {
    if (difference.flat < 0 || (replayed ? difference.other : difference.owner) != rank_) return;
    own += to_bytes(std::span<const uint64_t>(digests(difference.flat, replayed)));
  };
  for (const bool replayed : {false, true}) {
    for (const Difference& difference : differences_) append(difference, replayed);
  }
  const std::vector<std::string> all = groups_.world().communicator().gather_objects(own);
  for (Difference& difference : differences_) {
    if (difference.flat < 0) continue;
    const auto count = static_cast<std::size_t>(block_count(difference.flat));
    const auto of_owner = from_bytes<uint64_t>(all[static_cast<std::size_t>(difference.owner)]);
    const auto of_other = from_bytes<uint64_t>(all[static_cast<std::size_t>(difference.other)]);
    if (of_owner.size() < count || of_other.size() < count) continue;
    const uint64_t* const replayed = of_other.data() + of_other.size() - count;
    const auto [first, second] = std::mismatch(of_owner.begin(), of_owner.begin() + static_cast<std::ptrdiff_t>(count),
                                               replayed, replayed + count);
    difference.block = first - of_owner.begin();
  }
}

/// The data coordinates that computed other gradients or losses than two others, by the sums of round 2.
std::set<int> ReplayCheck::wrong_coordinates(const std::vector<Sums>& sums) const {
  std::set<int> wrong;
  for (int owner = 0; owner < static_cast<int>(sums_.size()); ++owner) {
    const int other = replayer_of(owner, 1), third = replayer_of(owner, 2);
    const uint64_t own = sums_[static_cast<std::size_t>(owner)].own;
    const uint64_t repeated = sums_[static_cast<std::size_t>(other)].replayed;
    const uint64_t vote = sums[static_cast<std::size_t>(third)].replayed;
    if (own == repeated) continue;
    if (vote == repeated) wrong.insert(data_of(owner));
    if (vote == own) wrong.insert(data_of(other));
  }
  return wrong;
}

/// Of the two ranks of a difference, returns the one that the third rank contradicts. Returns nullopt if it contradicts
/// both.
std::optional<int> ReplayCheck::contradicted(const Difference& difference, const std::vector<Sums>& sums,
                                             const std::vector<std::vector<Result>>& sends) const {
  const auto value = [&](int rank, const auto& all_sums, const auto& all_sends, bool replayed) {
    const auto index = static_cast<std::size_t>(rank);
    if (difference.send < 0) return replayed ? all_sums[index].replayed : all_sums[index].own;
    const Result& result = all_sends[index][static_cast<std::size_t>(difference.send)];
    return replayed ? result.replayed : result.own;
  };
  const uint64_t vote = value(replayer_of(difference.owner, 2), sums, sends, true);
  if (vote == value(difference.other, sums_, sends_, true)) return difference.owner;
  if (vote == value(difference.owner, sums_, sends_, false)) return difference.other;
  return std::nullopt;
}

/// Adds the ranks that may be at fault: of three ranks that computed the same results, the one that two others
/// contradict. If all three differ, or if there are only two, adds all of them. `sums` and `sends` are those of round
/// 2. A decision from sent data counts only if gradients show that the same data coordinate is wrong, because a model
/// may leave bytes of what it sends undefined.
void ReplayCheck::vote(const std::vector<Sums>& sums, const std::vector<std::vector<Result>>& sends,
                       ReplayError::Finding& finding) const {
  std::set<int> decided, open;
  const std::set<int> wrong = sums.empty() ? std::set<int>() : wrong_coordinates(sums);
  for (const Difference& difference : differences_) {
    const int owner = difference.owner, other = difference.other;
    const auto add = [&](std::set<int>& ranks, int rank) {
      ranks.insert(rank);
      for (const int each : uncertain_) {
        if (data_of(each) == data_of(owner)) ranks.insert(with_data(each, data_of(rank)));
      }
    };
    if (sums.empty()) {
      for (const int rank : {owner, other}) add(open, rank);
      continue;
    }
    const auto rank = contradicted(difference, sums, sends);
    if (rank && (difference.send < 0 || wrong.contains(data_of(*rank)))) {
      add(decided, *rank);
    } else if (difference.send >= 0 && !wrong.empty()) {
      for (const int data : wrong) add(open, with_data(owner, data));
    } else {
      for (const int each : {owner, other, replayer_of(owner, 2)}) add(open, each);
    }
  }
  finding.is_decided = open.empty();
  decided.merge(open);
  finding.ranks.assign(decided.begin(), decided.end());
}

void ReplayCheck::decide(bool is_valid, int64_t step) {
  const ScopedCollectivePurpose purpose("decide about a replay");
  std::vector<Sums> sums;
  std::vector<std::vector<Result>> sends;
  if (has_third()) {
    sums = gather_sums(is_valid);
    sends = gather(this->sends());
  }
  if (std::ranges::any_of(sums, [](const Sums& each) { return each.is_valid == 0; })) sums.clear();
  ReplayError::Finding finding;
  vote(sums, sends, finding);
  const Difference& first =
      *std::ranges::min_element(differences_, {}, [](const Difference& each) { return each.flat < 0 ? 1 : 0; });
  throw_replay_error(plan_, groups_, {first.flat, first.block, first.owner}, std::move(finding),
                     "wrong gradients of micro-batch 0", step);
}

}  // namespace aliquot
