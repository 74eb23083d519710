// Replays of a session: another rank repeats micro-batch 0 before the step, and the gradients are compared at its end.
#include <span>

#include "engine/session.h"
#include "kernels/system/seconds.h"

namespace aliquot {

int Session::data_coordinate() const {
  if (is_replay()) return replay_check_->replayed_coordinate(replay_progress_ == ReplayProgress::kRound2 ? 2 : 1);
  const MeshCoordinates& at = groups_.coordinates();
  return at.replica * groups_.mesh().shard + at.shard;
}

void Session::compare_loss(double loss, bool replayed) {
  if (replay_check_) replay_check_->set_loss(replayed, loss);
}

bool Session::is_replay_due() const { return replay_ && (decider_.step_count() + 1) % plan_->policy.replay_every == 0; }

bool Session::in_replay_round() const {
  return replay_progress_ == ReplayProgress::kRound1 || replay_progress_ == ReplayProgress::kRound2;
}

/// Waits for a GPU before a replay. end_replay_round() waits after it. The measured time is thus that of the replay.
void Session::begin_replay(ReplayProgress round) {
  if (world_.device().kind() != DeviceKind::kHost) wait_until_idle();
  replay_began_ = now_seconds();
  Executor& executor = activate(replay_->executor);
  executor.set_reported_step(decider_.step_count() + 1);
  executor.run_to_model_code();
  replay_progress_ = round;
}

void Session::end_replay_round() {
  const bool first = replay_progress_ == ReplayProgress::kRound1;
  replay_progress_ = first ? ReplayProgress::kReplayed : ReplayProgress::kDecides;
  if (world_.device().kind() != DeviceKind::kHost) wait_until_idle();
  replay_seconds_ += now_seconds() - replay_began_;
}

/// Opens the next use of a replay. Begins a replay before the first micro-batch of the step if one is due. Returns
/// false if no replay runs.
bool Session::open_next_replay() {
  if (replay_progress_ == ReplayProgress::kDecides) decide_replay();
  if (replay_progress_ == ReplayProgress::kNone && micro_batch_ < 0 && is_replay_due()) {
    replay_check_->begin_step();
    begin_replay(ReplayProgress::kRound1);
  }
  if (!in_replay_round()) return false;
  const std::span<const UnitId> units = plan_->model.uses[next_operation().operand];
  if (next_operation().verb == Verb::kRecompute) recompute(units);
  make_live(units, next_kind());
  return true;
}

/// Completes the replay of an abandoned step without model code. Other ranks wait for its operations.
void Session::skip_replay() {
  if (replay_progress_ == ReplayProgress::kNone && micro_batch_ < 0 && is_replay_due())
    begin_replay(ReplayProgress::kRound1);
  if (in_replay_round()) {
    replay_is_valid_ = false;
    skip_rest_of_passes();
    active_->finish_step();
    end_replay_round();
  }
  if (replay_progress_ == ReplayProgress::kDecides) decide_replay();
}

/// Compares the gradients of the step with those of the replay, after the last pass of the step. Returns whether round
/// 2 has begun. It overwrites gradients of the step, whose update is refused.
bool Session::compare_replay() {
  if (replay_progress_ != ReplayProgress::kReplayed) return false;
  wait_until_idle();  // for the passes of the step, whose time is not that of the replay
  const double began = now_seconds();
  replay_check_->set_sent(false, executor_.sums_of_sends());
  replay_check_->set_sent(true, replay_->executor.sums_of_sends());
  const bool differs = replay_check_->differs(replay_is_valid_);
  if (!differs) require_equal_sums();
  replay_seconds_ += now_seconds() - began + executor_.drain_repetition_seconds();
  replay_progress_ = ReplayProgress::kCompared;
  if (!differs) return false;
  if (!replay_check_->has_third()) decide_replay();
  executor_.discard_step();
  begin_replay(ReplayProgress::kRound2);
  return true;
}

void Session::require_equal_sums() {
  try {
    sum_check_->require_equal(decider_.step_count() + 1);
  } catch (...) {
    unusable_ = true;
    throw;
  }
}

void Session::decide_replay() {
  unusable_ = true;
  wait_until_idle();
  replay_check_->set_sent(true, replay_->executor.sums_of_sends());
  replay_check_->decide(replay_is_valid_, decider_.step_count() + 1);
}

}  // namespace aliquot
