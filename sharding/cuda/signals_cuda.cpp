#include "sharding/cuda/signals_cuda.h"

#include <deque>
#include <vector>

#include "sharding/comm/board_client.h"
#include "sharding/comm/gather_from_threads.h"
#include "sharding/cuda/lane_events_cuda.h"

namespace aliquot {
namespace {

/// The events of one rank, by lane.
struct RankEvents {
  explicit RankEvents(int ordinal) {
    for (int lane = 0; lane < kLaneCount; ++lane) arrivals.emplace_back(ordinal), progress.emplace_back(ordinal);
  }
  std::deque<LaneEvents> arrivals, progress;
};

/// The events of all ranks. All ranks own them jointly, so that an event exists while another rank may wait for it.
using AllRankEvents = std::vector<std::shared_ptr<RankEvents>>;

CudaStream& as_cuda_stream(Stream& stream) {
  cuda_device(stream).make_current();  // throws if `stream` is not a CUDA stream
  return static_cast<CudaStream&>(stream);
}

class CudaSignals final : public Signals {
 public:
  CudaSignals(std::unique_ptr<NodeMapping> memory, AllRankEvents rank_events, const SignalsOptions& options)
      : client_(std::move(memory), options), rank_events_(std::move(rank_events)) {}

  void arrive(Stream& stream, uint64_t sequence, const OperationDescription& what, Label label) override {
    CudaStream& cuda = as_cuda_stream(stream);
    if (rank_events_.size() > 1) own().arrivals[index(stream.lane())].record(cuda, sequence);
    client_.arrive(stream.lane(), sequence, what, label);
  }

  void await_arrivals(Stream& stream, uint64_t sequence, const OperationDescription& what, Label label) override {
    AllRanksArrived{&client_, stream.lane(), true, 0, sequence, what, label}.block();
    for (const auto& rank : rank_events_) {
      if (rank.get() != &own()) rank->arrivals[index(stream.lane())].wait(as_cuda_stream(stream), sequence);
    }
  }

  void publish(Stream& stream, uint64_t progress) override {
    CudaStream& cuda = as_cuda_stream(stream);
    if (!cuda.is_captured()) own().progress[index(stream.lane())].record(cuda, progress);
    client_.publish(stream.lane(), progress);
  }

  void await_progress(Stream& stream, Lane lane, uint64_t progress, Label label) override {
    AllRanksArrived{&client_, lane, false, 0, progress, {}, label}.block();
    CudaStream& cuda = as_cuda_stream(stream);
    if (cuda.is_captured()) return;
    for (const auto& rank : rank_events_) rank->progress[index(lane)].wait(cuda, progress);
  }

  void abort(std::string_view why) noexcept override { client_.abort(why); }

 private:
  static std::size_t index(Lane lane) { return static_cast<std::size_t>(lane); }
  RankEvents& own() { return *rank_events_[static_cast<std::size_t>(client_.options().rank)]; }

  BoardClient client_;
  AllRankEvents rank_events_;
};

}  // namespace

std::unique_ptr<Signals> make_cuda_signals(Device& device, std::unique_ptr<NodeMapping> board, Bootstrap& bootstrap,
                                           const SignalsOptions& options) {
  auto rank_events = gather_from_threads(bootstrap, std::make_shared<RankEvents>(cuda_device(device).ordinal()));
  return std::make_unique<CudaSignals>(std::move(board), std::move(rank_events), options);
}

}  // namespace aliquot
