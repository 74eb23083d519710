#include "sharding/comm/board_client.h"

#include <chrono>
#include <cmath>
#include <fmt/format.h>

#include "kernels/device/gate.h"
#include "kernels/system/deadlock_watch.h"
#include "sharding/comm/abort_reason.h"
#include "sharding/comm/collective_purpose.h"
#include "sharding/comm/poll_period.h"

namespace aliquot {
namespace {

int64_t now_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

BoardClient::BoardClient(std::unique_ptr<NodeMapping> memory, const SignalsOptions& options)
    : memory_(std::move(memory)), board_(memory_->writable, options.rank_count), options_(options) {}

void BoardClient::arrive(Lane lane, uint64_t sequence, const OperationDescription& what, Label label) {
  LaneBoard& own = board_.lane(options_.rank, lane);
  write_shared(own.label, label.what);
  own.step.store(label.step, std::memory_order_relaxed);
  board_.rank(options_.rank).last_lane.store(static_cast<uint32_t>(lane), std::memory_order_relaxed);
  own.descriptions[sequence % LaneBoard::kDescriptionDepth].store(what.packed(), std::memory_order_relaxed);
  own.fingerprints[sequence % LaneBoard::kDescriptionDepth].store(what.fingerprint, std::memory_order_relaxed);
  own.arrived.raise_to(sequence);
}

void BoardClient::publish(Lane lane, uint64_t progress) {
  board_.lane(options_.rank, lane).progress.raise_to(progress);
}

void BoardClient::arrive_at_rendezvous(std::string_view purpose) noexcept {
  RankBoard& own = board_.rank(options_.rank);
  write_shared(own.rendezvous_purpose, purpose);
  own.rendezvous_count.fetch_add(1, std::memory_order_release);
}

void BoardClient::abort(std::string_view why) const noexcept {
  board_.abort(why);
  if (options_.abort_elsewhere) options_.abort_elsewhere(why);
}

void BoardClient::throw_if_aborted() const {
  if (board_.notice().posted()) throw_abort(board_.notice().why());
}

void BoardClient::throw_if_aborted_elsewhere() const {
  std::string why;
  if (options_.aborted_elsewhere && options_.aborted_elsewhere(&why)) throw_abort(why);
}

bool AllRanksArrived::open() {
  if (started_nanoseconds == 0) started_nanoseconds = now_nanoseconds();
  for (; next_rank < client->board().rank_count(); ++next_rank) {
    if (!counter(next_rank).reached(value)) {
      check_failures_and_timeout();
      return false;
    }
    check_same_operation(next_rank);
  }
  return true;
}

void AllRanksArrived::block() {
  const int64_t period = poll_nanoseconds(client->board().rank_count());
  DeadlockWatch watch;
  while (!open()) {
    if (work_cancelled()) throw WorkCancelled{};
    if (counter(next_rank).wait(value, period)) continue;
    const std::string deadlock = watch.poll([this] { return "in " + wait_text(); });
    if (deadlock.empty()) continue;
    client->abort(deadlock);
    throw CommunicationError(deadlock);
  }
}

/// Returns text such as "barrier #2 (h.7, step 118)".
std::string AllRanksArrived::wait_text() const {
  const std::string place = is_arrival ? fmt::format("{} #{}", what.text(), value)
                                       : fmt::format("a wait for the {} lane of all ranks", name(lane));
  return place + label_text(label.what, label.step) + group_text(client->options().group);
}

const SharedCounter& AllRanksArrived::counter(int rank) const {
  const LaneBoard& board = client->board().lane(rank, lane);
  return is_arrival ? board.arrived : board.progress;
}

/// Throws if `rank` has arrived with a different operation than this rank.
void AllRanksArrived::check_same_operation(int rank) const {
  const SignalsOptions& options = client->options();
  if (!is_arrival || rank == options.rank) return;
  const LaneBoard& theirs = client->board().lane(rank, lane);
  const uint64_t place = value % LaneBoard::kDescriptionDepth;
  const uint64_t packed = theirs.descriptions[place].load(std::memory_order_relaxed);
  if (packed == what.packed() && theirs.fingerprints[place].load(std::memory_order_relaxed) == what.fingerprint) return;
  // The other rank cannot pass this collective, so the label on its board is still the label of this collective.
  const std::string why = mismatch_text(
      {lane, value, options.group}, {options.global_rank(options.rank), what, label_text(label.what, label.step)},
      {options.global_rank(rank), OperationDescription::unpack(packed),
       label_text(read_shared(theirs.label), theirs.step.load(std::memory_order_relaxed))});
  client->abort(why);
  throw_abort(why);
}

/// Called while a rank is missing. Throws if an abort was posted, if a missing rank cannot arrive, or after the
/// deadline.
void AllRanksArrived::check_failures_and_timeout() const {
  constexpr double kSecondsBeforeSlowChecks = 0.01;  // the checks below cost more than reading the board
  client->throw_if_aborted();
  const double waited_seconds = static_cast<double>(now_nanoseconds() - started_nanoseconds) * 1e-9;
  if (waited_seconds > kSecondsBeforeSlowChecks) {
    client->throw_if_aborted_elsewhere();
    for (int r = 0; r < client->board().rank_count(); ++r) {
      if (returned_before_arriving(r)) throw_timeout(std::round(waited_seconds * 1e3) * 1e-3);
    }
    check_ranks_in_bootstrap();
  }
  // If a lane does not publish, it usually waits in a collective itself, perhaps of another group. That collective can
  // name the missing rank, so give it time to report first.
  constexpr double kGraceSeconds = 0.5;
  const double limit_seconds = client->options().timeout_seconds + (is_arrival ? 0 : kGraceSeconds);
  if (waited_seconds <= limit_seconds) return;
  // A rank that waits for another node can name the missing rank of that node, and reports it at its own deadline.
  if (any_rank_missing() || waited_seconds > 2 * limit_seconds) throw_timeout(client->options().timeout_seconds);
}

/// Returns whether this rank can report another rank as missing. For this, its own counter must have reached `value`.
/// Also, there must be a rank whose counter is below `value` and that does not wait for another node.
bool AllRanksArrived::any_rank_missing() const {
  if (!counter(client->options().rank).reached(value)) return false;
  for (int r = 0; r < client->board().rank_count(); ++r) {
    if (!counter(r).reached(value) && !waits_for_other_node(r)) return true;
  }
  return false;
}

bool AllRanksArrived::waits_for_other_node(int rank) const {
  return is_arrival &&
         client->board().lane(rank, lane).waiting_for_other_nodes.load(std::memory_order_relaxed) >= value;
}

/// Returns whether the rank's function returned before the rank arrived. The first read of the counter avoids the call
/// of has_returned() for most ranks. The counter is read again after that call, because the rank may have arrived and
/// returned in between.
bool AllRanksArrived::returned_before_arriving(int rank) const {
  const SignalsOptions& options = client->options();
  if (!options.has_returned || counter(rank).reached(value)) return false;
  return options.has_returned(rank) && !counter(rank).reached(value);
}

/// Detects a deadlock. On hosts, a rank's own thread executes its compute lane. If it waits here for a rank whose own
/// thread waits for this rank in a rendezvous, neither rank can continue.
void AllRanksArrived::check_ranks_in_bootstrap() const {
  const SignalsOptions& options = client->options();
  if (!is_arrival || lane != Lane::kCompute || !client->on_rank_thread()) return;
  for (int r = 0; r < client->board().rank_count(); ++r) {
    if (counter(r).reached(value)) continue;
    std::string purpose = options.awaited_by ? options.awaited_by(r) : "";
    if (purpose.empty()) purpose = client->board().rendezvous_of(r, options.rank);
    // Read the counter again: a rank that has arrived meanwhile may already be in a later rendezvous.
    if (purpose.empty() || counter(r).reached(value)) continue;
    const std::string why = fmt::format(
        "rank {} is in {}, but rank {} is at a rendezvous to {}: all ranks must make the same calls in the same order",
        options.global_rank(options.rank), wait_text(), options.global_rank(r), purpose);
    client->abort(why);
    throw_abort(why);
  }
}

/// Describes a rank that has not arrived, for the message of a timeout.
std::string AllRanksArrived::missing_text(int rank) const {
  if (waits_for_other_node(rank)) return "waits for a rank of another node";
  std::string text =
      returned_before_arriving(rank) ? "has returned from its function before it arrived" : "never arrived";
  if (const std::string purpose = client->board().rendezvous_of(rank, client->options().rank); !purpose.empty())
    return text + ", and is at a rendezvous to " + purpose;
  const std::string last = client->board().last_operation(rank);
  return text + (last.empty() ? ", and it had no earlier operation" : ", its last operation was " + last);
}

void AllRanksArrived::throw_timeout(double waited_seconds) const {
  const Board& board = client->board();
  const SignalsOptions& options = client->options();
  std::string missing;
  std::size_t count = 0;
  for (int r = 0; r < board.rank_count(); ++r) {
    if (counter(r).reached(value) || ++count > kMaxNamedMissingRanks) continue;
    missing += fmt::format("; rank {} {}", options.global_rank(r), missing_text(r));
  }
  if (count > kMaxNamedMissingRanks) missing += fmt::format("; and {} more ranks", count - kMaxNamedMissingRanks);
  const std::string why = fmt::format("rank {} waited {:g} s in {}{}", options.global_rank(options.rank),
                                      waited_seconds, wait_text(), missing);
  client->abort(why);
  throw_abort(why);
}

}  // namespace aliquot
