#include <chrono>
#include <fmt/format.h>

#include "kernels/host_stream.h"
#include "sharding/board.h"
#include "sharding/signals.h"

namespace aliquot {
namespace {

int64_t now_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class HostSignals;

/// What a stream waits for: every rank's counter at `value`. Small and copyable, as gates want it.
struct Everybody {
  const HostSignals* signals;
  Lane lane;
  bool is_arrival;  // or else published progress
  int next_rank = 0;
  uint64_t value;
  OperationDescription what;
  Label label;
  int64_t started_nanoseconds = 0;

  bool open();
  void block();
};

class HostSignals final : public Signals {
 public:
  HostSignals(std::unique_ptr<NodeMapping> memory, const SignalsOptions& options)
      : memory_(std::move(memory)), board_(memory_->writable, options.rank_count), options_(options) {}

  void arrive(Stream& stream, uint64_t sequence, const OperationDescription& what, Label label) override {
    host(stream).run([this, lane = stream.lane(), sequence, packed = what.packed(), label] {
      LaneBoard& own = board_.lane(options_.rank, lane);
      own.what.write(label.what);
      own.step.store(label.step, std::memory_order_relaxed);
      board_.rank(options_.rank).last_lane.store(static_cast<uint32_t>(lane), std::memory_order_relaxed);
      own.descriptions[sequence % LaneBoard::kDescriptionDepth].store(packed, std::memory_order_relaxed);
      own.arrived.raise_to(sequence);
    });
  }

  void await_arrivals(Stream& stream, uint64_t sequence, const OperationDescription& what, Label label) override {
    host(stream).wait_for(Gate(Everybody{this, stream.lane(), true, 0, sequence, what, label}));
  }

  void publish(Stream& stream, uint64_t progress) override {
    host(stream).run(
        [this, lane = stream.lane(), progress] { board_.lane(options_.rank, lane).progress.raise_to(progress); });
  }

  void await_progress(Stream& stream, Lane lane, uint64_t progress, Label label) override {
    host(stream).wait_for(Gate(Everybody{this, lane, false, 0, progress, {}, label}));
  }

  void abort(std::string_view why) noexcept override { board_.abort(why); }

  const Board& board() const { return board_; }
  const SharedCounter& counter(const Everybody& wait, int rank) const {
    const LaneBoard& lane = board_.lane(rank, wait.lane);
    return wait.is_arrival ? lane.arrived : lane.progress;
  }

  void throw_if_aborted() const {
    if (board_.notice().posted()) throw CommunicationError(board_.notice().why());
  }

  /// `rank` has arrived: with the same operation?
  void compare(const Everybody& wait, int rank) const {
    if (!wait.is_arrival || rank == options_.rank) return;
    const uint64_t theirs = board_.lane(rank, wait.lane)
                                .descriptions[wait.value % LaneBoard::kDescriptionDepth]
                                .load(std::memory_order_relaxed);
    if (theirs == wait.what.packed()) return;
    const std::string why = fmt::format(
        "ranks disagree at collective #{} of the {} lane: rank {} is in {}{}, rank {} in {}; no byte was used",
        wait.value, name(wait.lane), options_.name_of(options_.rank), wait.what.text(),
        label_text(wait.label.what, wait.label.step), options_.name_of(rank),
        OperationDescription::unpack(theirs).text());
    board_.abort(why);
    throw CommunicationError(why);
  }

  bool overdue(const Everybody& wait) const {
    return static_cast<double>(now_nanoseconds() - wait.started_nanoseconds) * 1e-9 > options_.timeout_seconds;
  }

  [[noreturn]] void give_up(const Everybody& wait) const {
    std::string missing;
    for (int r = 0; r < board_.rank_count(); ++r) {
      if (counter(wait, r).reached(wait.value)) continue;
      missing += fmt::format("; rank {} never arrived, its last operation was {}", options_.name_of(r),
                             board_.last_operation(r));
    }
    const std::string place = wait.is_arrival ? fmt::format("{} #{}", wait.what.text(), wait.value)
                                              : fmt::format("a wait for the {} lane of all ranks", name(wait.lane));
    const std::string why =
        fmt::format("rank {} waited {:g} s in {}{}{}", options_.name_of(options_.rank), options_.timeout_seconds, place,
                    label_text(wait.label.what, wait.label.step), missing);
    board_.abort(why);
    throw CommunicationError(why);
  }

 private:
  std::unique_ptr<NodeMapping> memory_;
  Board board_;
  SignalsOptions options_;
};

bool Everybody::open() {
  if (started_nanoseconds == 0) started_nanoseconds = now_nanoseconds();
  for (; next_rank < signals->board().rank_count(); ++next_rank) {
    if (!signals->counter(*this, next_rank).reached(value)) {
      signals->throw_if_aborted();
      if (signals->overdue(*this)) signals->give_up(*this);
      return false;
    }
    signals->compare(*this, next_rank);
  }
  return true;
}

void Everybody::block() {
  constexpr int64_t kPatienceNanoseconds = 20'000'000;
  while (!open()) {
    if (work_cancelled()) throw WorkCancelled{};
    signals->counter(*this, next_rank).wait(value, kPatienceNanoseconds);
  }
}

}  // namespace

std::unique_ptr<Signals> make_host_signals(std::unique_ptr<NodeMapping> board, const SignalsOptions& options) {
  return std::make_unique<HostSignals>(std::move(board), options);
}

}  // namespace aliquot
