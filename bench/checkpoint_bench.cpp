// Two ranks save and load a checkpoint of 1.5 GB. The reference, `raw`, writes or reads the same number of bytes with
// direct I/O on the same number of threads. ratio_to_raw is the checkpoint's time divided by the reference's time.
// Files are in the working directory, or in ALIQUOT_BENCH_DIR.
#include <benchmark/benchmark.h>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "bench/paired.h"
#include "checkpoint/background_saver.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "sharding/layout.h"
#include "sharding/world.h"

namespace aliquot {
namespace {

constexpr int kRanks = 2;
constexpr int kRounds = 5;
constexpr int64_t kChunkBytes = 4 << 20, kHugePageBytes = 2 << 20;

std::filesystem::path place() {
  const char* chosen = std::getenv("ALIQUOT_BENCH_DIR");
  return std::filesystem::path(chosen != nullptr ? chosen : ".") / "checkpoint-bench";
}

void check(bool worked, const char* what) {
  if (!worked) throw std::runtime_error("cannot " + std::string(what) + " in " + place().string());
}

double seconds_of(const std::function<void()>& body) {
  const auto begun = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

/// GPT-2 124M: parameters and two moments, 1.49 GB in fp32.
std::vector<TensorSpec> tensors() {
  std::vector<TensorSpec> all;
  for (const std::string group : {"parameters/", "optimizer/exp_avg/", "optimizer/exp_avg_sq/"}) {
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
      all.push_back({group + name, std::move(shape)});
    };
    add("wte.weight", {50257, 768});
    add("wpe.weight", {1024, 768});
    for (int layer = 0; layer < 12; ++layer) {
      const std::string h = "h." + std::to_string(layer) + ".";
      for (const char* name :
           {"ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias", "attn.c_proj.bias", "mlp.c_proj.bias"})
        add(h + name, {768});
      add(h + "attn.c_attn.weight", {768, 2304});
      add(h + "attn.c_attn.bias", {2304});
      add(h + "attn.c_proj.weight", {768, 768});
      add(h + "mlp.c_fc.weight", {768, 3072});
      add(h + "mlp.c_fc.bias", {3072});
      add(h + "mlp.c_proj.weight", {3072, 768});
    }
  }
  return all;
}

/// One rank's half of the state.
struct Shard {
  State state;
  std::vector<std::byte> memory;

  Shard(const FlatLayout& layout, int rank) : memory(static_cast<size_t>(layout.shard_count()) * 4, std::byte{0x3c}) {
    state.step = 1;
    for (const TensorSpec& tensor : layout.tensors())
      state.tensors.push_back({tensor.name, tensor.shape, tensor.dtype, {}, nullptr});
    for (const Piece& piece : layout.pieces(rank)) {
      state.tensors[static_cast<size_t>(piece.tensor)].pieces.push_back(
          {piece.tensor_offset, piece.count, memory.data() + piece.shard_offset * 4, false});
    }
  }
};

std::vector<std::unique_ptr<Shard>>& shards() {
  static std::vector<std::unique_ptr<Shard>> all = [] {
    const FlatLayout layout(tensors(), kRanks);
    std::vector<std::unique_ptr<Shard>> made;
    for (int rank = 0; rank < kRanks; ++rank) made.push_back(std::make_unique<Shard>(layout, rank));
    return made;
  }();
  return all;
}

void on_ranks(const std::function<void(World&, Shard&)>& body) {
  WorldOptions options;
  options.device = DeviceChoice::kHost;
  options.threads_per_rank = 1;
  World::threads(
      kRanks, [&](World& world) { body(world, *shards()[static_cast<size_t>(world.rank())]); }, options);
}

void save_once() {
  on_ranks([](World& world, Shard& shard) { save(shard.state, world.communicator(), place()); });
}

std::filesystem::path state_file() { return place() / checkpoint_name(1) / "state.h5"; }

/// Removes a file's pages from the page cache, so that the next read comes from the disk.
void evict_from_page_cache(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  check(file >= 0 && ::fsync(file) == 0 && ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0,
        "evict the state file from the page cache");
  ::close(file);
}

/// The reference: each thread writes or reads its half of the file with direct I/O and an aligned buffer.
void raw(const std::filesystem::path& path, int64_t size_bytes, bool writes) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
  check(file >= 0, "open the raw file with O_DIRECT");
  if (writes) check(::posix_fallocate(file, 0, size_bytes) == 0, "allocate the raw file");
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kRanks; ++thread) {
    threads.emplace_back([=] {
      const std::unique_ptr<void, decltype(&std::free)> buffer(std::aligned_alloc(kHugePageBytes, kChunkBytes),
                                                               &std::free);
      ::madvise(buffer.get(), kChunkBytes, MADV_HUGEPAGE);  // with small pages the kernel would split each request
      std::memset(buffer.get(), 0x3c, kChunkBytes);
      const int64_t chunks = size_bytes / kChunkBytes, end = chunks * (thread + 1) / kRanks;
      for (int64_t chunk = chunks * thread / kRanks; chunk < end; ++chunk) {
        const ssize_t moved = writes ? ::pwrite(file, buffer.get(), kChunkBytes, chunk * kChunkBytes)
                                     : ::pread(file, buffer.get(), kChunkBytes, chunk * kChunkBytes);
        check(moved == kChunkBytes, "transfer a chunk of the raw file");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (writes) check(::fsync(file) == 0, "flush the raw file");
  ::close(file);
}

struct Rounds {
  std::vector<double> ours, ratios;

  void report(benchmark::State& state, int64_t size_bytes) const {
    state.counters["GB/s"] = static_cast<double>(size_bytes) / median(ours) * 1e-9;
    state.counters["ratio_to_raw"] = median(ratios);
  }
};

int64_t file_bytes() { return static_cast<int64_t>(std::filesystem::file_size(state_file())); }

void bench_save(benchmark::State& state) {
  Rounds rounds;
  int64_t size_bytes = 0;
  for (auto _ : state) {
    const bool raw_first = rounds.ours.size() % 2 == 1;
    double raw_seconds = 0;
    const auto run_raw = [&] {
      raw_seconds = seconds_of([&] { raw(place() / "raw", int64_t{1493} << 20, true); });
      std::filesystem::remove(place() / "raw");
    };
    std::filesystem::remove_all(place());
    std::filesystem::create_directories(place());
    if (raw_first) run_raw();
    const double seconds = seconds_of(save_once);
    size_bytes = file_bytes();
    std::filesystem::remove_all(place() / checkpoint_name(1));
    if (!raw_first) run_raw();
    rounds.ours.push_back(seconds);
    rounds.ratios.push_back(seconds / static_cast<double>(size_bytes) /
                            (raw_seconds / static_cast<double>(int64_t{1493} << 20)));
    state.SetIterationTime(seconds);
  }
  rounds.report(state, size_bytes);
  std::filesystem::remove_all(place());
}

void bench_load(benchmark::State& state, bool fresh) {
  std::filesystem::remove_all(place());
  save_once();
  Rounds rounds;
  const int64_t size_bytes = file_bytes();
  for (auto _ : state) {
    const bool raw_first = rounds.ours.size() % 2 == 1;
    double raw_seconds = 0;
    const auto run_raw = [&] { raw_seconds = seconds_of([&] { raw(state_file(), size_bytes, false); }); };
    evict_from_page_cache(state_file());
    if (raw_first) run_raw();
    LoadOptions options;
    options.state_is_fresh = fresh;
    const double seconds = seconds_of([&] {
      on_ranks([&](World& world, Shard& shard) {
        load(shard.state, world.communicator(), place() / checkpoint_name(1), options);
      });
    });
    evict_from_page_cache(state_file());
    if (!raw_first) run_raw();
    rounds.ours.push_back(seconds);
    rounds.ratios.push_back(seconds / raw_seconds);
    state.SetIterationTime(seconds);
  }
  rounds.report(state, size_bytes);
  std::filesystem::remove_all(place());
}

/// Measures the time that a background save adds to a step. This is the time of BackgroundSaver::start(), which all
/// ranks call at once. Compares this time with that of a memcpy of the shards.
void bench_background(benchmark::State& state) {
  std::filesystem::remove_all(place());
  std::filesystem::create_directories(place());
  std::vector<double> starts, ratios, saves;
  on_ranks([&](World& world, Shard& shard) {
    Communicator& ranks = world.communicator();
    BackgroundSaver saver(ranks, snapshot_bytes(shard.state), nullptr);
    std::vector<std::byte> copy(shard.memory.size(), std::byte{1});
    const auto together = [&](const std::function<void()>& body) {
      ranks.gather_objects("begin");
      return seconds_of([&] {
        body();
        ranks.gather_objects("end");
      });
    };
    saver.start(shard.state, place(), {});
    saver.collect();
    for (int round = 0; round < kRounds; ++round) {
      const auto run_copy = [&] {
        return together([&] { std::memcpy(copy.data(), shard.memory.data(), copy.size()); });
      };
      double copied = round % 2 == 1 ? run_copy() : 0;
      const double started = together([&] { saver.start(shard.state, place(), {}); });
      const double saved = together([&] { saver.collect(); });
      if (round % 2 == 0) copied = run_copy();
      if (world.rank() != 0) continue;
      starts.push_back(started);
      saves.push_back(saved);
      ratios.push_back(started / copied);
    }
  });
  size_t round = 0;
  for (auto _ : state) state.SetIterationTime(starts[round++]);
  state.counters["ratio_to_copy"] = median(ratios);
  state.counters["write_seconds"] = median(saves);
  std::filesystem::remove_all(place());
}

BENCHMARK(bench_background)
    ->Name("background/host/1.5_GB_2_ranks_start")
    ->UseManualTime()
    ->Iterations(kRounds)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(bench_save)
    ->Name("save/host/1.5_GB_2_ranks")
    ->UseManualTime()
    ->Iterations(kRounds)
    ->Unit(benchmark::kMillisecond);
void register_load(const char* name, bool fresh) {
  benchmark::RegisterBenchmark(name, bench_load, fresh)
      ->UseManualTime()
      ->Iterations(kRounds)
      ->Unit(benchmark::kMillisecond);
}

// A resumed run loads in one pass. The two-pass load verifies the complete file first.
const bool kRegistered = [] {
  register_load("load/host/1.5_GB_2_ranks_one_pass", true);
  register_load("load/host/1.5_GB_2_ranks_two_passes", false);
  return true;
}();

}  // namespace
}  // namespace aliquot
