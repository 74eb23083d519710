#include "bench/communication_team.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

#include "kernels/elementwise/kernels.h"

namespace aliquot::bench {
namespace {

/// The state that a rank keeps between runs.
struct Rank {
  SymmetricBuffer from, to;
  std::vector<float> sum;
  Buffer staging;
  uint64_t progress = 0;
  // Declared last, because its destructor waits for queued work that uses the buffers.
  std::unique_ptr<Stream> stream;
};

void fill(std::byte* data, int64_t size_bytes, int rank) {
  auto* values = reinterpret_cast<float*>(data);
  for (int64_t i = 0; i < size_bytes / 4; ++i) values[i] = static_cast<float>((i + rank) % 7);
}

std::function<void()> set_up_reduce_scatter(World& world) {
  auto rank = std::make_shared<Rank>();
  auto& ranks = world.communicator();
  const int64_t part_count = kBufferBytes / 4 / ranks.rank_count();
  rank->from = ranks.allocate(kBufferBytes, Category::kGradients, "gradients");
  fill(rank->from.local(), kBufferBytes, ranks.rank());
  rank->sum.resize(static_cast<std::size_t>(part_count));
  rank->staging = allocate_reduce_staging(world.device(), world.topology(), part_count);
  rank->stream = world.device().make_stream(Lane::kReduce);
  return [rank, &ranks, part_count] {
    ranks.reduce_scatter(
        *rank->stream,
        {.from = {&rank->from, 0}, .to = rank->sum.data(), .part_count = part_count, .staging = rank->staging.data()},
        {});
    rank->stream->synchronize();
  };
}

std::function<void()> set_up_all_gather(World& world) {
  auto rank = std::make_shared<Rank>();
  auto& ranks = world.communicator();
  const int64_t part_bytes = kBufferBytes / ranks.rank_count();
  rank->from = ranks.allocate(part_bytes, Category::kParameters, "shard");
  rank->to = ranks.allocate(kBufferBytes, Category::kSlots, "slot");
  fill(rank->from.local(), part_bytes, ranks.rank());
  rank->stream = world.device().make_stream(Lane::kGather);
  return [rank, &ranks, part_bytes] {
    ranks.all_gather(*rank->stream, {&rank->to, 0}, {&rank->from, 0}, part_bytes, {});
    rank->stream->synchronize();
  };
}

std::function<void()> set_up_view(World& world) {
  auto rank = std::make_shared<Rank>();
  auto& ranks = world.communicator();
  rank->stream = world.device().make_stream(Lane::kCompute);
  // A gather as a view copies nothing. It only waits until all ranks have published that their shards are ready.
  return [rank, &ranks] {
    for (int i = 0; i < kViewCount; ++i) {
      ranks.publish(*rank->stream, ++rank->progress);
      ranks.await(*rank->stream, Lane::kCompute, rank->progress, {});
    }
  };
}

/// One thread rank of the reference that plain() returns. Holds this rank's arrays, and the addresses of the input
/// arrays of all ranks.
class Plain {
 public:
  explicit Plain(World& world) : rank_(world.rank()), count_(world.rank_count()) {
    own_.resize(kBufferBytes / 4);
    result_.resize(kBufferBytes / 4);
    fill(reinterpret_cast<std::byte*>(own_.data()), kBufferBytes, rank_);
    const float* address = own_.data();
    for (const auto& theirs :
         world.communicator().gather_objects({reinterpret_cast<const char*>(&address), sizeof address})) {
      std::memcpy(&address, theirs.data(), sizeof address);
      all_.push_back(address);
    }
  }

  void sum() {
    const int64_t part = kBufferBytes / 4 / count_, begin = rank_ * part;
    float* __restrict out = result_.data();
    switch (count_) {
      case 2: return sum_two(out, all_[0] + begin, all_[1] + begin, part);
      case 4: return sum_four(out, begin, part);
      default: return sum_any(out, begin, part);
    }
  }

  void gather() {
    const int64_t part = kBufferBytes / 4 / count_;
    for (int i = 1; i <= count_; ++i) {
      const int peer = (rank_ + i) % count_;
      std::memcpy(result_.data() + peer * part, all_[peer], static_cast<std::size_t>(part) * 4);
    }
  }

 private:
  static void sum_two(float* __restrict out, const float* __restrict a, const float* __restrict b, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
  }
  void sum_four(float* __restrict out, int64_t begin, int64_t count) const {
    const float* __restrict a = all_[0] + begin, * __restrict b = all_[1] + begin;
    const float* __restrict c = all_[2] + begin, * __restrict d = all_[3] + begin;
    for (int64_t i = 0; i < count; ++i) out[i] = (a[i] + b[i]) + (c[i] + d[i]);
  }
  void sum_any(float* __restrict out, int64_t begin, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      float total = 0;
      for (const float* source : all_) total += source[begin + i];
      out[i] = total;
    }
  }

  int rank_, count_;
  std::vector<float> own_, result_;
  std::vector<const float*> all_;
};

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

SetUp operation(const std::string& name) {
  if (name == "reduce_scatter") return set_up_reduce_scatter;
  if (name == "all_gather") return set_up_all_gather;
  if (name == "view") return set_up_view;
  throw UsageError("unknown operation '" + name + "': expected reduce_scatter, all_gather or view");
}

SetUp plain(const std::string& name) {
  if (name == "reduce_scatter") {
    return [](World& world) { return [p = std::make_shared<Plain>(world)] { p->sum(); }; };
  }
  if (name == "all_gather") {
    return [](World& world) { return [p = std::make_shared<Plain>(world)] { p->gather(); }; };
  }
  return {};
}

Span time(const std::function<void()>& work) {
  Span span{now_seconds(), 0};
  work();
  span.end_seconds = now_seconds();
  return span;
}

double seconds_of(const std::vector<Span>& spans) {
  double begin = spans[0].begin_seconds, end = spans[0].end_seconds;
  for (const Span& span : spans) {
    begin = std::min(begin, span.begin_seconds);
    end = std::max(end, span.end_seconds);
  }
  return end - begin;
}

RankTeam::RankTeam(int rank_count, SetUp set_up) : begin_(rank_count + 1), end_(rank_count + 1), spans_(rank_count) {
  ranks_ = std::thread([this, rank_count, work = std::move(set_up)] {
    World::threads(rank_count, [&](World& world) { serve(world, work); }, {.device = DeviceChoice::kHost});
  });
}

RankTeam::~RankTeam() {
  stopping_ = true;
  begin_.arrive_and_wait();
  ranks_.join();
}

void RankTeam::serve(World& world, const SetUp& set_up) {
  const std::function<void()> work = set_up(world);
  for (;;) {
    begin_.arrive_and_wait();
    if (stopping_) break;
    spans_[world.rank()] = time(work);
    end_.arrive_and_wait();
  }
  world.communicator().gather_objects("done");  // other ranks may still read this rank's buffers
}

double RankTeam::run() {
  begin_.arrive_and_wait();
  end_.arrive_and_wait();
  return seconds_of(spans_);
}

}  // namespace aliquot::bench
