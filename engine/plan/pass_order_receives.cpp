// Where ranks of a pipeline issue their receives.
#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "engine/plan/pass_order.h"

namespace aliquot {
namespace {

/// Orders all transfers of a step: by the time at which the data is produced, then by direction and by receiving stage.
using TransferKey = std::tuple<int64_t, PassKind, int32_t>;

bool is_backward_of_input(PassKind pass) { return pass == PassKind::kBackward || pass == PassKind::kBackwardInput; }

int64_t duration(PassKind pass) { return pass == PassKind::kBackward ? 2 : 1; }

/// The times at which the actions of a valid order end, if transfers take no time.
class EndTimes {
 public:
  explicit EndTimes(const PassOrder& order) : stage_count_(0) {
    for (const auto& actions : order) {
      for (const PipelineAction& action : actions) stage_count_ = std::max(stage_count_, action.stage + 1);
    }
    std::vector<size_t> next(order.size(), 0);
    std::vector<int64_t> now(order.size(), 0);
    for (bool progressed = true; progressed;) {
      progressed = false;
      for (size_t rank = 0; rank < order.size(); ++rank) {
        for (; next[rank] < order[rank].size(); ++next[rank], progressed = true) {
          const PipelineAction& action = order[rank][next[rank]];
          const auto produced = input_time(action);
          if (!produced) break;
          now[rank] = std::max(now[rank], *produced) + duration(action.pass);
          end_[{action.stage, action.pass, action.micro_batch}] = now[rank];
        }
      }
    }
  }

  int64_t end(const PipelineAction& action) const { return end_.at({action.stage, action.pass, action.micro_batch}); }
  /// Whether another stage produces the input of the action.
  bool has_input(const PipelineAction& action) const {
    if (action.pass == PassKind::kForward) return action.stage > 0;
    return is_backward_of_input(action.pass) && action.stage + 1 < stage_count_;
  }
  /// When the input of the action is produced; 0 if there is none; nullopt if that time is not known yet.
  std::optional<int64_t> input_time(const PipelineAction& action) const {
    if (!has_input(action)) return 0;
    const bool forward = action.pass == PassKind::kForward;
    const int32_t from = forward ? action.stage - 1 : action.stage + 1;
    for (const PassKind pass : {PassKind::kForward, PassKind::kBackward, PassKind::kBackwardInput}) {
      if ((pass == PassKind::kForward) != forward) continue;
      if (const auto found = end_.find({from, pass, action.micro_batch}); found != end_.end()) return found->second;
    }
    return std::nullopt;
  }

 private:
  int32_t stage_count_;
  std::map<std::tuple<int32_t, PassKind, int32_t>, int64_t> end_;
};

}  // namespace

Receives receives_of(const PassOrder& order, int rank) {
  const auto& actions = order[static_cast<size_t>(rank)];
  const EndTimes times(order);
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

}  // namespace aliquot
