#include "sharding/cuda/signals_cuda.h"

#include <vector>

#include "sharding/comm/board_side.h"
#include "sharding/comm/share_between_threads.h"
#include "sharding/cuda/lane_points_cuda.h"

namespace aliquot {
namespace {

/// One rank's points, by lane.
struct RankPoints {
  std::array<LanePoints, kLaneCount> arrivals, progress;
};

/// All ranks' points, held by every rank, so that an event outlives whoever may still wait for it.
using Points = std::vector<std::shared_ptr<RankPoints>>;

CudaStream& cuda(Stream& stream) {
  cuda_device(stream).use();  // also throws if it is no CUDA stream
  return static_cast<CudaStream&>(stream);
}

class CudaSignals final : public Signals {
 public:
  CudaSignals(std::unique_ptr<NodeMapping> memory, Points points, const SignalsOptions& options)
      : side_(std::move(memory), options), points_(std::move(points)) {}

  void arrive(Stream& stream, uint64_t sequence, const OperationDescription& what, Label label) override {
    own().arrivals[index(stream.lane())].record(cuda(stream), sequence);
    side_.arrive(stream.lane(), sequence, what, label);
  }

  void await_arrivals(Stream& stream, uint64_t sequence, const OperationDescription& what, Label label) override {
    Everybody{&side_, stream.lane(), true, 0, sequence, what, label}.block();
    for (const auto& rank : points_) {
      if (rank.get() != &own()) rank->arrivals[index(stream.lane())].wait(cuda(stream), sequence);
    }
  }

  void publish(Stream& stream, uint64_t progress) override {
    own().progress[index(stream.lane())].record(cuda(stream), progress);
    side_.publish(stream.lane(), progress);
  }

  void await_progress(Stream& stream, Lane lane, uint64_t progress, Label label) override {
    Everybody{&side_, lane, false, 0, progress, {}, label}.block();
    for (const auto& rank : points_) rank->progress[index(lane)].wait(cuda(stream), progress);
  }

  void abort(std::string_view why) noexcept override { side_.abort(why); }

 private:
  static std::size_t index(Lane lane) { return static_cast<std::size_t>(lane); }
  RankPoints& own() { return *points_[static_cast<std::size_t>(side_.options().rank)]; }

  BoardSide side_;
  Points points_;
};

}  // namespace

std::unique_ptr<Signals> make_cuda_signals(std::unique_ptr<NodeMapping> board, Exchange& exchange,
                                           const SignalsOptions& options) {
  auto points = gather_from_threads(exchange, std::make_shared<RankPoints>());
  return std::make_unique<CudaSignals>(std::move(board), std::move(points), options);
}

}  // namespace aliquot
