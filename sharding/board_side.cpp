#include "sharding/board_side.h"

#include <chrono>
#include <fmt/format.h>

#include "kernels/gate.h"

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
  own.what.write(label.what);
  own.step.store(label.step, std::memory_order_relaxed);
  board_.rank(options_.rank).last_lane.store(static_cast<uint32_t>(lane), std::memory_order_relaxed);
  own.descriptions[sequence % LaneBoard::kDescriptionDepth].store(what.packed(), std::memory_order_relaxed);
  own.arrived.raise_to(sequence);
}

void BoardSide::publish(Lane lane, uint64_t progress) { board_.lane(options_.rank, lane).progress.raise_to(progress); }

void BoardSide::throw_if_aborted() const {
  if (board_.notice().posted()) throw CommunicationError(board_.notice().why());
}

bool Everybody::open() {
  if (started_nanoseconds == 0) started_nanoseconds = now_nanoseconds();
  for (; next_rank < side->board().rank_count(); ++next_rank) {
    if (!counter(next_rank).reached(value)) {
      side->throw_if_aborted();
      if (overdue()) give_up();
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
  const int own_rank = options.rank;
  if (!is_arrival || rank == own_rank) return;
  const auto& descriptions = side->board().lane(rank, lane).descriptions;
  const uint64_t theirs = descriptions[value % LaneBoard::kDescriptionDepth].load(std::memory_order_relaxed);
  if (theirs == what.packed()) return;
  const std::string why = fmt::format(
      "ranks disagree at collective #{} of the {} lane: rank {} is in {}{}, rank {} in {}; no byte was used", value,
      name(lane), options.name_of(own_rank), what.text(), label_text(label.what, label.step), options.name_of(rank),
      OperationDescription::unpack(theirs).text());
  side->abort(why);
  throw CommunicationError(why);
}

bool Everybody::overdue() const {
  return static_cast<double>(now_nanoseconds() - started_nanoseconds) * 1e-9 > side->options().timeout_seconds;
}

void Everybody::give_up() const {
  const Board& board = side->board();
  const SignalsOptions& options = side->options();
  std::string missing;
  for (int r = 0; r < board.rank_count(); ++r) {
    if (counter(r).reached(value)) continue;
    missing +=
        fmt::format("; rank {} never arrived, its last operation was {}", options.name_of(r), board.last_operation(r));
  }
  const std::string place = is_arrival ? fmt::format("{} #{}", what.text(), value)
                                       : fmt::format("a wait for the {} lane of all ranks", name(lane));
  const std::string why = fmt::format("rank {} waited {:g} s in {}{}{}", options.name_of(options.rank),
                                      options.timeout_seconds, place, label_text(label.what, label.step), missing);
  side->abort(why);
  throw CommunicationError(why);
}

}  // namespace aliquot
