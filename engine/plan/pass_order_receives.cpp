// Computes the times of passes. The times determine where ranks issue receives, and where the passes of tied ends run.
#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "engine/plan/pass_order.h"

namespace aliquot {
namespace {

/// The sort key of a transfer: the time at which its data is produced, then its direction, then its receiving stage.
using TransferKey = std::tuple<int64_t, PassKind, int32_t>;

bool is_backward_of_input(PassKind pass) { return pass == PassKind::kBackward || pass == PassKind::kBackwardInput; }

constexpr PassTimes kTiedEndTimes{.forward = 1, .backward = 1, .backward_input = 1, .backward_weights = 1};

/// The times at which the actions of a valid order end. The constructor takes linear time in the number of actions.
class EndTimes {
 public:
  /// `times`: empty for the default times.
  EndTimes(const PassOrder& order, bool tied_ends, StagePassTimes times) : times_(std::move(times)) {
    for (const auto& actions : order) {
      for (const PipelineAction& action : actions) {
        stage_count_ = std::max(stage_count_, action.stage + 1);
        micro_batch_count_ = std::max(micro_batch_count_, action.micro_batch + 1);
      }
    }
    if (times_.empty()) {
      times_.resize(static_cast<size_t>(stage_count_));
      if (tied_ends) times_.front() = kTiedEndTimes;
    }
    end_.resize(static_cast<size_t>(stage_count_) * static_cast<size_t>(micro_batch_count_) * kPasses);
    run(order);
  }

  int64_t end(const PipelineAction& action) const { return *end_[index(action)]; }
  int64_t start(const PipelineAction& action) const { return end(action) - duration(action); }
  /// Whether another stage produces the input of the action.
  bool has_input(const PipelineAction& action) const {
    if (action.pass == PassKind::kForward) return action.stage > 0;
    return is_backward_of_input(action.pass) && action.stage + 1 < stage_count_;
  }
  /// Returns the time at which another rank has produced the action's input: 0 if there is no input, nullopt if the
  /// time is not known yet.
  std::optional<int64_t> input_time(const PipelineAction& action) const {
    if (!has_input(action)) return 0;
    const auto [stage, pass, m] = action;
    if (pass == PassKind::kForward) return end_[index({stage - 1, PassKind::kForward, m})];
    const auto whole = end_[index({stage + 1, PassKind::kBackward, m})];
    return whole ? whole : end_[index({stage + 1, PassKind::kBackwardInput, m})];
  }

 private:
  static constexpr size_t kPasses = 4;

  size_t index(const PipelineAction& action) const {
    return (static_cast<size_t>(action.stage) * static_cast<size_t>(micro_batch_count_) +
            static_cast<size_t>(action.micro_batch)) *
               kPasses +
           static_cast<size_t>(action.pass);
  }
  int64_t duration(const PipelineAction& action) const {
    return times_[static_cast<size_t>(action.stage)].of(action.pass);
  }
  /// How long the transfer of the action's input takes.
  int64_t transfer(const PipelineAction& action) const {
    if (!has_input(action)) return 0;
    const bool forward = action.pass == PassKind::kForward;
    const PassTimes& sender = times_[static_cast<size_t>(forward ? action.stage - 1 : action.stage + 1)];
    return forward ? sender.send_activations : sender.send_gradients;
  }

  /// Computes the end time of each action. Follows the order of each rank until an action lacks its input. After each
  /// action, the rank that uses the result can continue.
  void run(const PassOrder& order) {
    std::vector<size_t> rank_of_stage(static_cast<size_t>(stage_count_)), can_continue;
    for (size_t rank = 0; rank < order.size(); ++rank) {
      for (const PipelineAction& action : order[rank]) rank_of_stage[static_cast<size_t>(action.stage)] = rank;
      can_continue.push_back(rank);
    }
    std::vector<size_t> next(order.size(), 0);
    std::vector<int64_t> now(order.size(), 0);
    while (!can_continue.empty()) {
      const size_t rank = can_continue.back();
      can_continue.pop_back();
      for (; next[rank] < order[rank].size(); ++next[rank]) {
        const PipelineAction& action = order[rank][next[rank]];
        const auto produced = input_time(action);
        if (!produced) break;
        now[rank] = std::max(now[rank], *produced + transfer(action)) + duration(action);
        end_[index(action)] = now[rank];
        const int32_t user = action.pass == PassKind::kForward ? action.stage + 1 : action.stage - 1;
        if (user >= 0 && user < stage_count_) can_continue.push_back(rank_of_stage[static_cast<size_t>(user)]);
      }
    }
  }

  int32_t stage_count_ = 0, micro_batch_count_ = 0;
  StagePassTimes times_;
  std::vector<std::optional<int64_t>> end_;  // end time of each action, see index(); empty: not known yet
};

/// The passes of virtual stage 0 to insert before each action of a rank, and after the last action.
class AddedPasses {
 public:
  explicit AddedPasses(const std::vector<PipelineAction>& actions) : before_(actions.size() + 1) {}

  void add(std::size_t before, PassKind pass, int32_t micro_batch) {
    before_[before].push_back({0, pass, micro_batch});
  }
  std::vector<PipelineAction> merged(const std::vector<PipelineAction>& actions) const {
    std::vector<PipelineAction> all = before_.front();
    for (std::size_t i = 0; i < actions.size(); ++i) {
      all.push_back(actions[i]);
      all.insert(all.end(), before_[i + 1].begin(), before_[i + 1].end());
    }
    return all;
  }

 private:
  std::vector<std::vector<PipelineAction>> before_;
};

}  // namespace

int64_t PassTimes::of(PassKind pass) const {
  switch (pass) {
    case PassKind::kForward: return forward;
    case PassKind::kBackward: return backward;
    case PassKind::kBackwardInput: return backward_input;
    case PassKind::kBackwardWeights: break;
  }
  return backward_weights;
}

PassOrder with_tied_ends(const PassOrder& order, bool backward_last, const StagePassTimes& with_ends) {
  // The order does not have virtual stage 0 yet.
  StagePassTimes without_ends(with_ends.begin() + (with_ends.empty() ? 0 : 1), with_ends.end());
  // Time for a transfer, and for passes that take longer than expected.
  const int64_t slack =
      without_ends.empty() ? PassTimes{}.forward : std::ranges::max(without_ends, {}, &PassTimes::forward).forward;
  const EndTimes times(order, false, std::move(without_ends));
  PassOrder all = order;
  for (auto& actions : all) {
    for (PipelineAction& action : actions) ++action.stage;
  }
  const auto& last = order.back();
  AddedPasses added(last);
  // Returns how many actions of the last rank satisfy `is_before`. Only its first actions may satisfy it.
  const auto count = [&](const auto& is_before) {
    return static_cast<std::size_t>(std::ranges::partition_point(last, is_before) - last.begin());
  };
  for (const PipelineAction& action : order.front()) {
    if (action.stage != 0) continue;
    if (action.pass == PassKind::kForward) {
      const int64_t needed = times.start(action) - slack;
      added.add(count([&](auto& own) { return times.end(own) <= needed; }), action.pass, action.micro_batch);
    } else if (is_backward_of_input(action.pass)) {
      const int64_t received = times.end(action) + slack;
      const auto at = backward_last ? last.size() : count([&](auto& own) { return times.start(own) < received; });
      added.add(at, PassKind::kBackward, action.micro_batch);
    }
  }
  all.back() = added.merged(all.back());
  return all;
}

namespace {

/// Returns the receives of the rank that runs `actions`.
Receives receives_of_rank(const std::vector<PipelineAction>& actions, const EndTimes& times) {
  std::vector<std::pair<TransferKey, PipelineAction>> inputs;
  for (const PipelineAction& action : actions) {
    if (!times.has_input(action)) continue;
    const PassKind direction = action.pass == PassKind::kForward ? PassKind::kForward : PassKind::kBackward;
    inputs.push_back({{*times.input_time(action), direction, action.stage}, action});
  }
  std::ranges::stable_sort(inputs, {}, [](const auto& input) { return input.first; });
  Receives receives(actions.size());
  size_t next = 0;
  for (size_t i = 0; i < actions.size(); ++i) {
    const auto [stage, pass, micro_batch] = actions[i];
    const bool forward = pass == PassKind::kForward;
    // The key of the transfer that sends the result of this action.
    const TransferKey sent{times.end(actions[i]), forward ? PassKind::kForward : PassKind::kBackward,
                           forward ? stage + 1 : stage - 1};
    for (; next < inputs.size() && inputs[next].first < sent; ++next) receives[i].push_back(inputs[next].second);
  }
  return receives;
}

}  // namespace

std::vector<Receives> receives_of(const PassOrder& order, bool tied_ends, const StagePassTimes& stage_times) {
  const EndTimes times(order, tied_ends, stage_times);
  std::vector<Receives> all;
  for (const auto& actions : order) all.push_back(receives_of_rank(actions, times));
  return all;
}

}  // namespace aliquot
