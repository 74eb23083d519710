#include "sharding/comm/board_side.h"

#include <chrono>
#include <cmath>
#include <fmt/format.h>

#include "kernels/device/gate.h"

namespace aliquot {
namespace {

int64_t now_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

BoardSide::BoardSide(std::unique_ptr<NodeMapping> memory, const SignalsOptions& options)
    : memory_(std::move(memory)), board_(memory_->writable, options.rank_count), options_(options) {}

void BoardSide::arrive(Lane lane, uint64_t sequence, const OperationDescription& what, Label label) {
  LaneBoard& own = board_.lane(options_.rank, lane);
  write_shared(own.what, label.what);
  own.step.store(label.step, std::memory_order_relaxed);
  board_.rank(options_.rank).last_lane.store(static_cast<uint32_t>(lane), std::memory_order_relaxed);
  own.descriptions[sequence % LaneBoard::kDescriptionDepth].store(what.packed(), std::memory_order_relaxed);
  own.marks[sequence % LaneBoard::kDescriptionDepth].store(what.mark, std::memory_order_relaxed);
  own.arrived.raise_to(sequence);
}

void BoardSide::publish(Lane lane, uint64_t progress) { board_.lane(options_.rank, lane).progress.raise_to(progress); }

void BoardSide::throw_if_aborted() const {
  if (board_.notice().posted()) throw CommunicationError(board_.notice().why());
}

void BoardSide::throw_if_aborted_elsewhere() const {
  std::string why;
  if (options_.aborted_elsewhere && options_.aborted_elsewhere(&why)) throw CommunicationError(why);
}

bool Everybody::open() {
  if (started_nanoseconds == 0) started_nanoseconds = now_nanoseconds();
  for (; next_rank < side->board().rank_count(); ++next_rank) {
    if (!counter(next_rank).reached(value)) {
      look_around();
      return false;
    }
    compare(next_rank);
  }
  return true;
}

void Everybody::block() {
  constexpr int64_t kPatienceNanoseconds = 20'000'000;
  while (!open()) {
    if (work_cancelled()) throw WorkCancelled{};
    counter(next_rank).wait(value, kPatienceNanoseconds);
  }
}

const SharedCounter& Everybody::counter(int rank) const {
  const LaneBoard& board = side->board().lane(rank, lane);
  return is_arrival ? board.arrived : board.progress;
}

/// `rank` has arrived: with the same operation?
void Everybody::compare(int rank) const {
  const SignalsOptions& options = side->options();
  if (!is_arrival || rank == options.rank) return;
  const LaneBoard& theirs = side->board().lane(rank, lane);
  const uint64_t place = value % LaneBoard::kDescriptionDepth;
  const uint64_t packed = theirs.descriptions[place].load(std::memory_order_relaxed);
  if (packed == what.packed() && theirs.marks[place].load(std::memory_order_relaxed) == what.mark) return;
  // It cannot get past this one either, so its label is that of this one.
  const std::string why =
      disagreement(lane, value, {options.name_of(options.rank), what, label_text(label.what, label.step)},
                   {options.name_of(rank), OperationDescription::unpack(packed),
                    label_text(read_shared(theirs.what), theirs.step.load(std::memory_order_relaxed))});
  side->abort(why);
  throw CommunicationError(why);
}

/// Somebody is missing: must this rank leave?
void Everybody::look_around() const {
  constexpr double kSecondsUntilElsewhere = 0.01;  // asking there costs more than looking at the board
  side->throw_if_aborted();
  const double waited_seconds = static_cast<double>(now_nanoseconds() - started_nanoseconds) * 1e-9;
  if (waited_seconds > kSecondsUntilElsewhere) {
    side->throw_if_aborted_elsewhere();
    for (int r = 0; r < side->board().rank_count(); ++r) {
      if (never_comes(r)) give_up(std::round(waited_seconds * 1e3) * 1e-3);
    }
    look_for_other_calls();
  }
  // What a lane does not publish it waits for itself, most often in a collective, of another group perhaps: that knows who
  // is missing, and speaks first.
  constexpr double kLaterSeconds = 0.5;
  const double limit_seconds = side->options().timeout_seconds + (is_arrival ? 0 : kLaterSeconds);
  if (waited_seconds <= limit_seconds) return;
  // Who waits for another node itself knows who is missing there, and says so at its own deadline.
  if (somebody_never_came() || waited_seconds > 2 * limit_seconds) give_up(side->options().timeout_seconds);
}

/// Of whom this rank may complain: not while a lane of its own is behind.
bool Everybody::somebody_never_came() const {
  if (!counter(side->options().rank).reached(value)) return false;
  for (int r = 0; r < side->board().rank_count(); ++r) {
    if (!counter(r).reached(value) && !waits_elsewhere(r)) return true;
  }
  return false;
}

bool Everybody::waits_elsewhere(int rank) const {
  return is_arrival && side->board().lane(rank, lane).came.load(std::memory_order_relaxed) >= value;
}

/// It returned before it came to this. The counter is read last, since a rank returns after all that it came to; and first, since
/// most ranks are there.
bool Everybody::never_comes(int rank) const {
  const SignalsOptions& options = side->options();
  if (!options.has_returned || counter(rank).reached(value)) return false;
  return options.has_returned(rank) && !counter(rank).reached(value);
}

/// A host's compute lane is the rank's own thread. Where it waits for the own thread of another rank, which waits for this rank in
/// an exchange, neither ever goes on.
void Everybody::look_for_other_calls() const {
  const SignalsOptions& options = side->options();
  if (!is_arrival || lane != Lane::kCompute || !options.awaited_by || !side->on_own_thread()) return;
  for (int r = 0; r < side->board().rank_count(); ++r) {
    if (counter(r).reached(value)) continue;
    const std::string purpose = options.awaited_by(r);
    // Read again, last: a rank that came to this meanwhile may be in the exchange after it.
    if (purpose.empty() || counter(r).reached(value)) continue;
    const std::string why = fmt::format(
        "rank {} is in {} #{}{}, and rank {} is there to {}: all ranks are to make the same calls in the same order",
        options.name_of(options.rank), what.text(), value, label_text(label.what, label.step), options.name_of(r),
        purpose);
    side->abort(why);
    throw CommunicationError(why);
  }
}

void Everybody::give_up(double waited_seconds) const {
  const Board& board = side->board();
  const SignalsOptions& options = side->options();
  std::string missing;
  for (int r = 0; r < board.rank_count(); ++r) {
    if (counter(r).reached(value)) continue;
    missing += waits_elsewhere(r)
                   ? fmt::format("; rank {} waits for a rank of another node", options.name_of(r))
                   : fmt::format("; rank {} {}, its last operation was {}", options.name_of(r),
                                 never_comes(r) ? "has returned without it" : "never arrived", board.last_operation(r));
  }
  const std::string place = is_arrival ? fmt::format("{} #{}", what.text(), value)
                                       : fmt::format("a wait for the {} lane of all ranks", name(lane));
  const std::string why = fmt::format("rank {} waited {:g} s in {}{}{}", options.name_of(options.rank), waited_seconds,
                                      place, label_text(label.what, label.step), missing);
  side->abort(why);
  throw CommunicationError(why);
}

}  // namespace aliquot
