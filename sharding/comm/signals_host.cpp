#include "kernels/device/host_stream.h"
#include "sharding/comm/board_client.h"

namespace aliquot {
namespace {

/// Accesses the board from the worker threads of the streams.
class HostSignals final : public Signals {
 public:
  HostSignals(std::unique_ptr<NodeMapping> memory, const SignalsOptions& options)
      : client_(std::move(memory), options) {}

  void arrive(Stream& stream, uint64_t sequence, const OperationDescription& what, Label label) override {
    as_host_stream(stream).run(
        [this, lane = stream.lane(), sequence, what, label] { client_.arrive(lane, sequence, what, label); });
  }

  void await_arrivals(Stream& stream, uint64_t sequence, const OperationDescription& what, Label label) override {
    as_host_stream(stream).wait_for(Gate(AllRanksArrived{&client_, stream.lane(), true, 0, sequence, what, label}));
  }

  void publish(Stream& stream, uint64_t progress) override {
    as_host_stream(stream).run([this, lane = stream.lane(), progress] { client_.publish(lane, progress); });
  }

  void await_progress(Stream& stream, Lane lane, uint64_t progress, Label label) override {
    as_host_stream(stream).wait_for(Gate(AllRanksArrived{&client_, lane, false, 0, progress, {}, label}));
  }

  void arrive_at_rendezvous(std::string_view purpose) noexcept override { client_.arrive_at_rendezvous(purpose); }
  std::string last_operation(int rank) const override { return client_.board().last_operation(rank); }

  void abort(std::string_view why) noexcept override { client_.abort(why); }

 private:
  BoardClient client_;
};

}  // namespace

std::unique_ptr<Signals> make_host_signals(std::unique_ptr<NodeMapping> board, const SignalsOptions& options) {
  return std::make_unique<HostSignals>(std::move(board), options);
}

}  // namespace aliquot
