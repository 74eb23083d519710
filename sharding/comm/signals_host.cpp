#include "kernels/device/host_stream.h"
#include "sharding/comm/board_side.h"

namespace aliquot {
namespace {

/// The board, written and looked at by the streams' own workers.
class HostSignals final : public Signals {
 public:
  HostSignals(std::unique_ptr<NodeMapping> memory, const SignalsOptions& options) : side_(std::move(memory), options) {}

  void arrive(Stream& stream, uint64_t sequence, const OperationDescription& what, Label label) override {
    host(stream).run(
        [this, lane = stream.lane(), sequence, what, label] { side_.arrive(lane, sequence, what, label); });
  }

  void await_arrivals(Stream& stream, uint64_t sequence, const OperationDescription& what, Label label) override {
    host(stream).wait_for(Gate(Everybody{&side_, stream.lane(), true, 0, sequence, what, label}));
  }

  void publish(Stream& stream, uint64_t progress) override {
    host(stream).run([this, lane = stream.lane(), progress] { side_.publish(lane, progress); });
  }

  void await_progress(Stream& stream, Lane lane, uint64_t progress, Label label) override {
    host(stream).wait_for(Gate(Everybody{&side_, lane, false, 0, progress, {}, label}));
  }

  void abort(std::string_view why) noexcept override { side_.abort(why); }

 private:
  BoardSide side_;
};

}  // namespace

std::unique_ptr<Signals> make_host_signals(std::unique_ptr<NodeMapping> board, const SignalsOptions& options) {
  return std::make_unique<HostSignals>(std::move(board), options);
}

}  // namespace aliquot
