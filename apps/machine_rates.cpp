#include "apps/machine_rates.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <vector>

#include "apps/link_rates.h"
#include "apps/models/product.h"
#include "kernels/host_stream.h"
#include "kernels/kernels.h"
#include "optim/optimizer.h"
#include "optim/update.h"
#include "sharding/cores.h"
#include "sharding/world.h"

namespace aliquot {
namespace {

constexpr int64_t kElements = int64_t{16} << 20;  // far more than caches hold
constexpr int64_t kSmallPart = 256;
constexpr int64_t kProductRows = 512, kProductColumns = 768, kProductDepth = 384;
constexpr int kRounds = 25;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// One rank's arrays, and the work whose time is taken.
class RankRates {
 public:
  explicit RankRates(World& world)
      : world_(world),
        stream_(world.device().make_stream(Lane::kCompute)),
        inside_(world.communicator().split(world.topology().node_of_rank[world.rank()], world.rank())),
        gradients_(inside_->allocate(kElements * 4, Category::kGradients, "gradients")),
        arrays_(4, std::vector<float>(static_cast<size_t>(kElements), 1e-3f)) {
    std::fill_n(reinterpret_cast<float*>(gradients_.local()), kElements, 1e-3f);
  }

  int thread_count() const { return host(*stream_).pool().thread_count(); }

  CostModel measure() {
    CostModel cost = CostModel::typical_host();
    if (const int ranks = inside_->rank_count(); ranks > 1) {
      const double part_bytes = static_cast<double>(kElements) * 4 / ranks;
      cost.inside_node.latency_seconds = least_seconds([&] { reduce(kSmallPart); });
      cost.inside_node.bytes_per_second = part_bytes * (ranks - 1) / least_seconds([&] { reduce(kElements / ranks); });
    }
    if (!world_.topology().one_node()) {
      const LinkRates links = measure_links(world_, [&] { product(); });
      cost.between_nodes = links.alone;
      cost.beside_compute = links.beside_compute;
      cost.beside_compute_share = links.compute_share;
    }
    cost.cores_per_thread = cores_per_thread();
    cost.copy_bytes_per_second = 2.0 * 4 * kElements / least_seconds([&] { copy(); });  // read and written
    cost.update_seconds_per_element = least_seconds([&] { update(); }) / static_cast<double>(kElements);
    cost.flops_per_second = 2.0 * kProductRows * kProductColumns * kProductDepth / least_seconds([&] { product(); });
    return cost;
  }

 private:
  /// All ranks begin together, round by round; the first round touches what it needs. Of the others the best: what else
  /// runs on a machine makes it look slower, never faster.
  double least_seconds(const std::function<void()>& work) {
    double least = 1e9;
    for (int round = 0; round <= kRounds; ++round) {
      world_.communicator().barrier(*stream_, {"measuring"});
      stream_->synchronize();
      const double began = now_seconds();
      work();
      stream_->synchronize();
      if (round > 0) least = std::min(least, now_seconds() - began);
    }
    return least;
  }

  void reduce(int64_t part_count) {
    inside_->reduce_scatter(*stream_, {.from = {&gradients_, 0}, .to = arrays_[0].data(), .part_count = part_count},
                            {"measuring"});
  }
  double cores_per_thread() const {
    const std::vector<bool> cores = allowed_cores();
    const auto count = static_cast<double>(std::count(cores.begin(), cores.end(), true));
    return count / inside_->rank_count() / thread_count();
  }
  void copy() { world_.device().kernels().copy(*stream_, arrays_[0].data(), arrays_[1].data(), kElements * 4); }
  void update() {
    const Segment all{.offset = 0, .count = kElements, .global_offset = 0, .parameter = 0};
    UpdateArgs args{.gradient = arrays_[0].data(), .master = {.whole = arrays_[1].data()}};
    args.states[0] = arrays_[2].data();
    args.states[1] = arrays_[3].data();
    args.segments = &all;
    args.segment_count = 1;
    args.count = kElements;
    update_kernels(DeviceKind::kHost).update(*stream_, args, {.rule = rule_at(AdamW{}, 1e-6, 1), .step = 1});
    stream_->synchronize();  // before its arguments go
  }
  void product() {
    multiply(host(*stream_).pool(), {.a = {arrays_[0].data(), kProductDepth},
                                     .b = {arrays_[1].data(), kProductColumns},
                                     .to = arrays_[2].data(),
                                     .to_stride = kProductColumns,
                                     .rows = kProductRows,
                                     .columns = kProductColumns,
                                     .depth = kProductDepth});
  }

  World& world_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Communicator> inside_;
  SymmetricBuffer gradients_;
  std::vector<std::vector<float>> arrays_;
};

}  // namespace

MachineRates measure_machine() {
  MachineRates rates;
  std::atomic<int> ranks_here = 0;
  World::run(rates.rank_count,
             [&](World& world) {
               ++ranks_here;
               RankRates rank(world);
               const CostModel cost = rank.measure();
               world.communicator().gather_objects("measured");  // nobody reads the others' memory any more
               if (world.rank() != 0) return;
               rates = {.rank_count = world.rank_count(),
                        .threads_per_rank = rank.thread_count(),
                        .ranks_on_node = static_cast<int>(world.topology().ranks_of_node(0).size()),
                        .several_nodes = !world.topology().one_node(),
                        .leads = true,
                        .cost = cost};
             },
             {.device = DeviceChoice::kHost});
  rates.launched = ranks_here < rates.rank_count;
  return rates;
}

}  // namespace aliquot
