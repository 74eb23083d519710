// Checks of a pass order that a user supplies.
#include <algorithm>
#include <fmt/format.h>
#include <numeric>
#include <optional>
#include <utility>

#include "engine/plan/pass_order.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// Up to this number of expected actions per rank, the message names the first missing action. Above it, the message
/// only compares the numbers of actions.
constexpr int64_t kMaxMissingActions = 1 << 20;

[[noreturn]] void refuse(int rank, const PipelineAction& action, std::string_view why) {
  throw UsageError(fmt::format("pass order of rank {}: {} {}", rank, name(action), why));
}

/// Records the passes that a rank, or the whole pipeline, has run, by virtual stage and micro-batch.
class PassesDone {
 public:
  explicit PassesDone(const PipelineShape& shape)
      : micro_batches_(shape.micro_batches),
        done_(static_cast<size_t>(shape.stage_count()) * static_cast<size_t>(shape.micro_batches) * kPasses) {}

  bool has(int stage, PassKind pass, int micro_batch) const { return done_[index({stage, pass, micro_batch})]; }
  bool has(const PipelineAction& action) const { return done_[index(action)]; }
  void add(const PipelineAction& action) { done_[index(action)] = true; }
  /// Whether the gradient of the stage's input is complete.
  bool has_input_gradient(int stage, int micro_batch) const {
    return has(stage, PassKind::kBackward, micro_batch) || has(stage, PassKind::kBackwardInput, micro_batch);
  }

 private:
  static constexpr size_t kPasses = 4;

  size_t index(const PipelineAction& action) const {
    return (static_cast<size_t>(action.stage) * static_cast<size_t>(micro_batches_) +
            static_cast<size_t>(action.micro_batch)) *
               kPasses +
           static_cast<size_t>(action.pass);
  }

  int micro_batches_;
  std::vector<bool> done_;
};

/// Checks the actions of one rank, without regard to other ranks.
class RankCheck {
 public:
  RankCheck(int rank, const PipelineShape& shape)
      : rank_(rank), shape_(shape), done_(shape), last_(static_cast<size_t>(shape.stage_count()), {-1, -1, -1}) {}

  void run(const std::vector<PipelineAction>& actions) {
    for (const PipelineAction& action : actions) {
      check_range(action);
      check_pass(action);
      check_ascending(action);
      done_.add(action);
    }
    for (int stage = 0; stage < shape_.stage_count(); ++stage) {
      if (shape_.rank_of(stage) != rank_) continue;
      for (int m = 0; m < shape_.micro_batches; ++m) check_complete(stage, m);
    }
  }

 private:
  /// The last micro-batch for which each kind of pass has run. `weights` is for all passes that add to the gradients of
  /// weights.
  struct Last {
    int forward, input, weights;
  };

  void check_range(const PipelineAction& action) const {
    if (action.stage < 0 || action.micro_batch < 0)
      throw UsageError(
          fmt::format("pass order of rank {}: an action has virtual stage {} and micro-batch {}: expected "
                      "0 or more",
                      rank_, action.stage, action.micro_batch));
    if (action.stage >= shape_.stage_count())
      refuse(rank_, action,
             fmt::format("names virtual stage {}: expected 0 to {}", action.stage, shape_.stage_count() - 1));
    if (const int owner = shape_.rank_of(action.stage); owner != rank_)
      refuse(rank_, action, fmt::format("belongs to rank {}", owner));
    if (action.micro_batch >= shape_.micro_batches)
      refuse(rank_, action,
             fmt::format("names micro-batch {}: expected 0 to {}", action.micro_batch, shape_.micro_batches - 1));
  }

  void check_pass(const PipelineAction& action) const {
    const auto [stage, pass, m] = action;
    const bool is_input = pass == PassKind::kBackward || pass == PassKind::kBackwardInput;
    if (done_.has(action) || (is_input && done_.has_input_gradient(stage, m)))
      refuse(rank_, action, "repeats a pass that has run");
    if (is_input && !done_.has(stage, PassKind::kForward, m))
      refuse(rank_, action, fmt::format("precedes {}", name({stage, PassKind::kForward, m})));
    if (pass == PassKind::kBackwardWeights && !done_.has(stage, PassKind::kBackwardInput, m))
      refuse(rank_, action, fmt::format("does not follow {}", name({stage, PassKind::kBackwardInput, m})));
  }

  /// Checks that each kind of pass has ascending micro-batches. Each sum of gradients then adds micro-batches in the
  /// same order, so results do not depend on the order of passes.
  void check_ascending(const PipelineAction& action) {
    const auto advance = [&](int& last) {
      if (action.micro_batch < last)
        refuse(rank_, action, fmt::format("follows micro-batch {}: expected ascending micro-batches", last));
      last = action.micro_batch;
    };
    Last& last = last_[static_cast<size_t>(action.stage)];
    if (action.pass == PassKind::kForward) advance(last.forward);
    if (action.pass == PassKind::kBackward || action.pass == PassKind::kBackwardInput) advance(last.input);
    if (action.pass == PassKind::kBackward || action.pass == PassKind::kBackwardWeights) advance(last.weights);
  }

  void check_complete(int stage, int m) const {
    const auto require = [&](PassKind pass) {
      if (!done_.has(stage, pass, m)) refuse(rank_, {stage, pass, m}, "is missing");
    };
    require(PassKind::kForward);
    if (done_.has(stage, PassKind::kBackwardInput, m))
      require(PassKind::kBackwardWeights);
    else
      require(PassKind::kBackward);
  }

  int rank_;
  PipelineShape shape_;
  PassesDone done_;
  std::vector<Last> last_;  // one for each virtual stage
};

/// Returns the pass on another virtual stage that the action waits for, or nullopt if the action can run.
std::optional<PipelineAction> missing_input(const PipelineAction& action, const PassesDone& done, int stage_count) {
  const auto [stage, pass, m] = action;
  if (pass == PassKind::kForward && stage > 0 && !done.has(stage - 1, PassKind::kForward, m))
    return PipelineAction{stage - 1, PassKind::kForward, m};
  const bool is_input = pass == PassKind::kBackward || pass == PassKind::kBackwardInput;
  if (is_input && stage + 1 < stage_count && !done.has_input_gradient(stage + 1, m))
    return PipelineAction{stage + 1, PassKind::kBackward, m};
  return std::nullopt;
}

/// Simulates all ranks, each of which runs its actions in order. Throws UsageError if each unfinished rank waits for
/// another one.
void check_progress(const PassOrder& order, const PipelineShape& shape) {
  PassesDone done(shape);
  std::vector<size_t> next(order.size(), 0);
  std::vector<size_t> can_continue(order.size());
  std::iota(can_continue.begin(), can_continue.end(), size_t{0});
  while (!can_continue.empty()) {
    const size_t rank = can_continue.back();
    can_continue.pop_back();
    for (; next[rank] < order[rank].size(); ++next[rank]) {
      const PipelineAction& action = order[rank][next[rank]];
      if (missing_input(action, done, shape.stage_count())) break;
      done.add(action);
      for (const int user : {action.stage - 1, action.stage + 1}) {
        if (user >= 0 && user < shape.stage_count()) can_continue.push_back(static_cast<size_t>(shape.rank_of(user)));
      }
    }
  }
  std::string waits;
  std::optional<std::pair<int, PipelineAction>> first;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    if (next[rank] == order[rank].size()) continue;
    const PipelineAction& action = order[rank][next[rank]];
    if (!first) first = {static_cast<int>(rank), action};
    waits += fmt::format("{}rank {} waits in {} for {}", waits.empty() ? "" : ", ", rank, name(action),
                         name(*missing_input(action, done, shape.stage_count())));
  }
  if (first) refuse(first->first, first->second, fmt::format("never starts, because of a deadlock: {}", waits));
}

/// Checks the number of actions of each rank. A rank has a forward and a backward pass for each of its virtual stages
/// and micro-batches, and up to one action more for each backward pass that is split. Runs first, because the other
/// checks use memory in proportion to the shape.
void check_counts(const PassOrder& order, const PipelineShape& shape) {
  if (std::cmp_not_equal(order.size(), shape.ranks))
    throw UsageError(
        fmt::format("the pass order has lines for {} ranks, but the pipeline has {}", order.size(), shape.ranks));
  const int64_t least = 2 * int64_t{shape.virtual_stages} * shape.micro_batches;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    if (std::cmp_less(order[rank].size(), least) && least > kMaxMissingActions)
      throw UsageError(fmt::format("pass order of rank {}: it has {} actions: expected at least {}", rank,
                                   order[rank].size(), least));
  }
}

}  // namespace

void check(const PassOrder& order, const PipelineShape& shape) {
  check_counts(order, shape);
  for (int rank = 0; rank < shape.ranks; ++rank) RankCheck(rank, shape).run(order[static_cast<size_t>(rank)]);
  check_progress(order, shape);
}

}  // namespace aliquot
