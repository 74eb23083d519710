#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "apps/doctor/doctor.h"
#include "engine/cost/inter_node_groups.h"
#include "kernels/system/seconds.h"

namespace aliquot {
namespace {

// Two sizes in bytes of the part that each rank contributes to a collective, similar to sizes in models. The straight
// line through the two measured times gives the latency and the rate.
constexpr int64_t kSmallPart = int64_t{64} << 10, kLargePart = int64_t{2} << 20;
constexpr int kRounds = 25, kMaxAttempts = 6;
constexpr double kBurstSeconds = 0.005, kOverlapSeconds = 0.3;

class LinkBenchmark {
 public:
  LinkBenchmark(World& world, const std::function<void()>& compute)
      : world_(world),
        ranks_(world.communicator()),
        gathered_(ranks_.allocate(kLargePart * ranks_.rank_count(), Category::kSlots, "gathered parts")),
        sums_(world.device().allocate(kLargePart, Category::kStaging, "sums")),
        staging_(ranks_.allocate(std::max<int64_t>(1, staging_bytes()), Category::kStaging, "reduce-scatter staging")),
        compute_(compute),
        placement_(InterNodeGroups(ranks_.topology(), {.shard = ranks_.rank_count()}).replicas.front()),
        lane_(world.device().make_stream(Lane::kGather)) {}

  LinkRates measure() {
    compute_();
    LinkRates rates;
    const double small = alone_seconds(kSmallPart), large = alone_seconds(kLargePart);
    rates.alone = fit_link_cost(small, large);
    const OverlapSample small_beside = measure_overlap(kSmallPart, small),
                        large_beside = measure_overlap(kLargePart, large);
    rates.beside_compute = fit_link_cost(small_beside.seconds, large_beside.seconds);
    rates.compute_share = large_beside.lost_share;
    return rates;
  }

 private:
  int64_t staging_bytes() const {
    const Topology& topology = ranks_.topology();
    if (!sum_needs_staging(topology, false, DType::kFloat32, DType::kFloat32)) return 0;
    return reduce_staging(topology, count_of(kLargePart)).size_bytes();
  }
  static int64_t count_of(int64_t part_bytes) { return part_bytes / static_cast<int64_t>(sizeof(float)); }

  /// Enqueues an all-gather and a reduce-scatter.
  void transfer(int64_t part_bytes) {
    ranks_.all_gather_in_place(*lane_, {&gathered_, 0}, part_bytes, {"measuring"});
    ranks_.reduce_scatter(
        *lane_,
        {.from = {&gathered_, 0}, .to = sums_.data(), .part_count = count_of(part_bytes), .staging = staging_.local()},
        {"measuring"});
  }

  void barrier() {
    ranks_.barrier(*lane_, {"measuring"});
    lane_->synchronize();
  }

  double all_reduce_value(double value, Reduction reduction) {
    ranks_.all_reduce(*lane_, {&value, 1}, reduction, {"measuring"});
    lane_->synchronize();
    return value;
  }

  /// Seconds of one collective: half the time of an all-gather and a reduce-scatter. Computes before each measurement
  /// to reproduce the conditions of a step: lanes sleep while their rank computes, and ranks arrive at slightly
  /// different times.
  double alone_seconds(int64_t part_bytes) {
    std::vector<double> seconds;
    for (int round = 0; round <= kRounds; ++round) {
      barrier();
      for (const double since = now_seconds(); now_seconds() - since < kBurstSeconds;) compute_();
      const double began = now_seconds();
      transfer(part_bytes);
      lane_->synchronize();
      if (round > 0) seconds.push_back((now_seconds() - began) / 2);
    }
    std::ranges::sort(seconds);
    return all_reduce_value(seconds[seconds.size() / 2], Reduction::kMax);
  }

  struct OverlapSample {
    double seconds = 0, lost_share = 0;
  };

  /// Measures collectives while the rank's thread computes, and the slowdown of that computation. Repeats the
  /// measurement kMaxAttempts times and returns the one with the fastest collectives.
  OverlapSample measure_overlap(int64_t part_bytes, double alone) {
    OverlapSample best{.seconds = 1e9};
    for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
      const OverlapSample now = measure_overlap_once(part_bytes, alone);
      if (now.seconds < best.seconds) best = now;
    }
    return best;
  }

  OverlapSample measure_overlap_once(int64_t part_bytes, double alone) {
    barrier();
    const double computing_began = now_seconds();
    int64_t pieces = 0;
    for (; now_seconds() - computing_began < kOverlapSeconds; ++pieces) compute_();
    const double piece_seconds = (now_seconds() - computing_began) / static_cast<double>(pieces);
    const auto times =
        static_cast<int64_t>(all_reduce_value(std::ceil(kOverlapSeconds / (2 * alone)), Reduction::kMax));
    barrier();
    std::atomic<bool> done = false;
    const double began = now_seconds();
    for (int64_t i = 0; i < times; ++i) transfer(part_bytes);
    lane_->run([&done] { done = true; });
    for (pieces = 0; !done; ++pieces) compute_();
    const double took = now_seconds() - began;
    const double lost = std::clamp(1 - static_cast<double>(pieces) * piece_seconds / took, 0.0, 1.0);
    return {.seconds = all_reduce_value(took, Reduction::kMax) / (2 * static_cast<double>(times)),
            .lost_share = all_reduce_value(lost, Reduction::kSum) / ranks_.rank_count()};
  }

  LinkCost fit_link_cost(double small, double large) const {
    const auto bytes = [&](int64_t part_bytes) {
      const int64_t reduced =
          placement_.reduced_bytes(part_bytes / static_cast<int64_t>(sizeof(float)), DType::kFloat32);
      return static_cast<double>(placement_.gathered_bytes(part_bytes) + reduced) / 2;
    };
    LinkCost cost;
    cost.bytes_per_second = (bytes(kLargePart) - bytes(kSmallPart)) / std::max(large - small, 1e-9);
    cost.latency_seconds = std::max(small - bytes(kSmallPart) / cost.bytes_per_second, 1e-6);
    return cost;
  }

  World& world_;
  Communicator& ranks_;
  SymmetricBuffer gathered_;
  Buffer sums_;
  SymmetricBuffer staging_;
  const std::function<void()>& compute_;
  GroupPlacement placement_;
  std::unique_ptr<Stream> lane_;  // last member: destroyed, and thus synchronized, before the buffers
};

}  // namespace

LinkRates measure_links(World& world, const std::function<void()>& compute) {
  return LinkBenchmark(world, compute).measure();
}

}  // namespace aliquot
