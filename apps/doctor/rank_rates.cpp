#include <algorithm>
#include <functional>
#include <vector>

#include "apps/doctor/doctor.h"
#include "apps/models/cuda/backend_cuda.h"
#include "kernels/device/host_stream.h"
#include "kernels/elementwise/kernels.h"
#include "kernels/system/seconds.h"
#include "optim/optimizer.h"
#include "optim/update/update.h"
#include "sharding/cores.h"

namespace aliquot {
namespace {

constexpr int64_t kSmallPart = 256;  // elements per rank in the measurement of latency

/// 32-bit words that are small numbers both as one fp32 and as two bf16. They are random, because processors use less
/// power and therefore run faster if all numbers are equal.
std::vector<uint32_t> random_words(int64_t count) {
  std::vector<uint32_t> all(static_cast<size_t>(count));
  uint32_t random = 1;
  for (uint32_t& two : all) two = 0x3a003a00u | ((random = random * 1664525u + 1013904223u) >> 8 & 0x007f007fu);
  return all;
}

/// The measurements of one rank, with their arrays.
class RankRates {
 public:
  RankRates(World& world, const MeasuredSizes& sizes)
      : world_(world),
        sizes_(sizes),
        stream_(world.device().make_stream(Lane::kCompute)),
        inside_(world.communicator().split(world.topology().node_of_rank[world.rank()], world.rank())),
        gradients_(inside_->allocate(sizes.elements * 4, Category::kGradients, "gradients")),
        backend_(on_gpu() ? make_cuda_backend(world.device()) : make_host_backend(as_host_stream(*stream_).pool())) {
    backend_->compute_on(*stream_);
    for (Buffer& array : arrays_) {
      array = world.device().allocate(sizes.elements * 4, Category::kStaging, "measured arrays");
      fill(array.data());
    }
    fill(gradients_.local());
    scratch_ = world.device().allocate(backend_->product_scratch_elements(product_type(), product_type()) * 4,
                                       Category::kStaging, "scratch of products");
    const Segment all{.offset = 0, .count = sizes.elements, .global_offset = 0, .parameter = 0};
    segment_ = world.device().allocate(sizeof all, Category::kStaging, "segment");
    copy(segment_.data(), &all, sizeof all);
    stream_->synchronize();
  }

  CostModel measure() {
    CostModel cost = on_gpu() ? CostModel::typical_gpu() : CostModel::typical_host();
    if (inside_->rank_count() > 1) cost.inside_node = measure_node_link();
    if (!world_.topology().one_node()) measure_network_link(cost);
    if (!on_gpu()) cost.cores_per_thread = cores_per_thread();
    const auto elements = static_cast<double>(sizes_.elements);
    cost.copy_bytes_per_second =
        2 * 4 * elements / least_seconds([&] { copy(arrays_[0].data(), arrays_[1].data(), sizes_.elements * 4); });
    if (on_gpu()) cost.host_bytes_per_second = from_host_bytes_per_second();
    cost.update_seconds_per_element = least_seconds([&] { update(); }) / elements;
    const double operations =
        2.0 * static_cast<double>(sizes_.rows * sizes_.columns) * static_cast<double>(sizes_.depth);
    cost.flops_per_second = operations / least_seconds([&] { product(); });
    return cost;
  }

 private:
  bool on_gpu() const { return world_.device().kind() == DeviceKind::kCuda; }
  DType product_type() const { return on_gpu() ? DType::kBFloat16 : DType::kFloat32; }
  Values values(size_t array) const { return {arrays_[array].data(), product_type()}; }

  void copy(void* to, const void* from, int64_t size_bytes) {
    world_.device().kernels().copy(*stream_, to, from, size_bytes);
  }
  void fill(std::byte* array) {
    const std::vector<uint32_t> some = random_words(std::min<int64_t>(sizes_.elements, 1 << 20));
    for (int64_t at = 0; at < sizes_.elements; at += static_cast<int64_t>(some.size()))
      copy(array + at * 4, some.data(), 4 * std::min(static_cast<int64_t>(some.size()), sizes_.elements - at));
    stream_->synchronize();
  }

  /// The minimum time of `work` over the rounds, because other load on the machine only adds time. All ranks begin each
  /// round together. The first round is a warm-up and does not count.
  double least_seconds(const std::function<void()>& work) { return least_seconds(work, sizes_.repeats); }
  double least_seconds(const std::function<void()>& work, int repeats) {
    double least = 1e9;
    for (int round = 0; round <= sizes_.rounds; ++round) {
      world_.communicator().barrier(*stream_, {"measuring"});
      stream_->synchronize();
      const double began = now_seconds();
      for (int i = 0; i < repeats; ++i) work();
      stream_->synchronize();
      if (round > 0) least = std::min(least, (now_seconds() - began) / repeats);
    }
    return least;
  }

  LinkCost measure_node_link() {
    const int ranks = inside_->rank_count();
    const int64_t part = sizes_.elements / ranks;
    LinkCost link;
    link.latency_seconds = least_seconds([&] { reduce(kSmallPart); }, 1);
    link.bytes_per_second = static_cast<double>(part * 4) * (ranks - 1) / least_seconds([&] { reduce(part); });
    return link;
  }
  void measure_network_link(CostModel& cost) {
    const LinkRates links = measure_links(world_, [&] {
      product();
      stream_->synchronize();
    });
    cost.between_nodes = links.alone;
    cost.beside_compute = links.beside_compute;
    cost.beside_compute_share = on_gpu() ? 0 : links.compute_share;
  }
  double from_host_bytes_per_second() {
    const int64_t size_bytes = std::min(sizes_.elements * 4, int64_t{64} << 20);
    const Buffer pinned = world_.device().allocate_host(size_bytes, "pinned memory for measuring copies");
    return static_cast<double>(size_bytes) / least_seconds([&] { copy(arrays_[0].data(), pinned.data(), size_bytes); });
  }

  void reduce(int64_t part_count) {
    inside_->reduce_scatter(*stream_, {.from = {&gradients_, 0}, .to = arrays_[0].data(), .part_count = part_count},
                            {"measuring"});
  }
  double cores_per_thread() const {
    const std::vector<bool> cores = allowed_cores();
    const auto count = static_cast<double>(std::count(cores.begin(), cores.end(), true));
    return count / inside_->rank_count() / as_host_stream(*stream_).pool().thread_count();
  }
  void update() {
    const auto floats = [&](size_t array) { return reinterpret_cast<float*>(arrays_[array].data()); };
    UpdateArgs args{.gradient = floats(0), .master = {.whole = floats(1)}};
    args.states[0] = floats(2);
    args.states[1] = floats(3);
    args.segments = reinterpret_cast<const Segment*>(segment_.data());
    args.segment_count = 1;
    args.count = sizes_.elements;
    update_kernels(world_.device().kind()).update(*stream_, args, {.rule = rule_at(AdamW{}, 1e-6, 1), .step = 1});
    if (!on_gpu()) stream_->synchronize();  // the host kernel reads `args`, which is on the stack
  }
  void product() {
    const Linear linear{.weight = values(1),
                        .bias = {},
                        .rows = sizes_.rows,
                        .inputs = sizes_.depth,
                        .outputs = sizes_.columns,
                        .scratch = reinterpret_cast<float*>(scratch_.data())};
    backend_->linear_forward(linear, values(0), nullptr, values(2));
  }

  World& world_;
  MeasuredSizes sizes_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Communicator> inside_;
  SymmetricBuffer gradients_;
  std::unique_ptr<Backend> backend_;
  Buffer arrays_[4], scratch_, segment_;
};

}  // namespace

MeasuredSizes MeasuredSizes::of(DeviceKind device) {
  if (device == DeviceKind::kHost)
    return {.elements = int64_t{16} << 20, .rows = 512, .columns = 768, .depth = 384, .repeats = 1, .rounds = 25};
  return {.elements = int64_t{64} << 20, .rows = 8192, .columns = 8192, .depth = 4096, .repeats = 10, .rounds = 10};
}

CostModel measure_rank(World& world, const MeasuredSizes& sizes) {
  RankRates rank(world, sizes);
  const CostModel cost = rank.measure();
  world.communicator().gather_objects("measured");  // waits until no other rank reads the memory of this rank
  return cost;
}

}  // namespace aliquot
