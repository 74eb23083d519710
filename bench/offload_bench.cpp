// Compares a step with offloaded optimizer state with a step that keeps the state in memory, and with direct I/O of the
// same bytes.
#include <benchmark/benchmark.h>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <stdexcept>
#include <sys/mman.h>
#include <vector>

#include "bench/paired.h"
#include "engine/engine.h"
#include "engine/run/memory/offload_stores.h"

namespace aliquot {
namespace {

constexpr int kUnits = 16;
// The number of elements and the bytes of AdamW state of one unit. All units together have 512 MiB of AdamW state.
constexpr int64_t kElements = int64_t{4} << 20;
constexpr int64_t kStateBytes = kElements * 8;
constexpr int kRounds = 5;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

std::string scratch() {
  const char* folder = std::getenv("ALIQUOT_BENCH_DISK");
  return folder != nullptr ? folder : std::filesystem::temp_directory_path().string();
}

/// Units without computation: a step consists of gradient sums, the norm, copies and updates. Gradients are written
/// once and kept. They are nonzero, because a file system might not store zeros.
struct Subject {
  Subject(World& world, Offload to)
      : engine(world, {.zero_stage = 0, .offload_state = to, .offload_state_to = scratch()}) {
    for (int u = 0; u < kUnits; ++u)
      engine.add_unit(fmt::format("u{}", u)).add("w", {kElements}, &values[u], &gradients[u]).assigns_gradients();
    engine.materialize([](const auto&, int64_t, std::span<float> v) { std::ranges::fill(v, 1.0f); });
  }
  void step() {
    engine.micro_batch();
    for (Unit& unit : engine.units()) auto live = unit.forward();
    for (Unit& unit : reversed(engine.units())) {
      auto live = unit.backward();
      if (engine.step_count() == 0)
        for (int64_t i = 0; i < kElements; ++i) gradients[unit.index()][i] = 1e-3f * static_cast<float>(i % 1013);
    }
    if (engine.step().skipped) throw std::runtime_error("a step was skipped");
    engine.compute_stream().synchronize();
  }
  float *values[kUnits] = {}, *gradients[kUnits] = {};
  Engine engine;
};

/// Reads and writes the same bytes with direct I/O, one unit after the other, without any other work.
class RawDisk {
 public:
  explicit RawDisk(Device& device)
      : store_(make_disk_offload_store(FileSystem::system(), scratch(), kUnits * kStateBytes)),
        memory_(device.allocate(kStateBytes + kHugePageBytes, Category::kStaging, "raw disk")),
        io_(device.make_stream(Lane::kIo)) {
    pages_ = memory_.data() + (-reinterpret_cast<uintptr_t>(memory_.data())) % kHugePageBytes;
    madvise(pages_, kStateBytes, MADV_HUGEPAGE);  // small pages make direct I/O slower
    for (int64_t i = 0; i < kStateBytes; ++i) pages_[i] = static_cast<std::byte>(i * 2654435761u >> 13);
    for (int u = 0; u < kUnits; ++u) store_->copy_out(*io_, u * kStateBytes, pages_, kStateBytes);
    io_->synchronize();
  }
  void run() {
    for (int u = 0; u < kUnits; ++u) {
      store_->copy_in(*io_, pages_, u * kStateBytes, kStateBytes);
      store_->copy_out(*io_, u * kStateBytes, pages_, kStateBytes);
    }
    io_->synchronize();
  }

 private:
  std::unique_ptr<OffloadStore> store_;
  Buffer memory_;
  std::byte* pages_;
  std::unique_ptr<Stream> io_;
};

void step(benchmark::State& state, Offload to) {
  World::threads(1,
                 [&](World& world) {
                   Subject offloaded(world, to), here(world, Offload::kNone);
                   std::unique_ptr<RawDisk> disk;
                   PairedBenchmark paired(state, [&] { offloaded.step(); });
                   paired.compare_with("in_memory", [&] { here.step(); });
                   if (to == Offload::kDisk) {
                     disk = std::make_unique<RawDisk>(world.device());
                     paired.compare_with("raw_disk", [&] { disk->run(); });
                   }
                   paired.run(2 * kUnits * kStateBytes);
                 },
                 {.device = DeviceChoice::kHost, .threads_per_rank = 1});
}

const bool registered = [] {
  for (const auto& [name, to] : {std::pair{"host", Offload::kHost}, std::pair{"disk", Offload::kDisk}}) {
    benchmark::RegisterBenchmark(fmt::format("offload/host/state_to_{}", name).c_str(),
                                 [to = to](benchmark::State& state) { step(state, to); })
        ->UseManualTime()
        ->Iterations(kRounds)
        ->Unit(benchmark::kMillisecond);
  }
  return true;
}();

}  // namespace
}  // namespace aliquot
