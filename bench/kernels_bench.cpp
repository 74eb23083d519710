// Compares each elementwise loop on one thread with a memcpy that reads and writes the same number of bytes in total.
// The arrays are larger than any cache. By default, the loops are those for the best instruction set of the processor.
// ALIQUOT_ISA selects another instruction set.
#include <benchmark/benchmark.h>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bench/paired.h"
#include "kernels/elementwise/host_loops.h"

namespace aliquot {
namespace {

constexpr int64_t kElements = int64_t{64} << 20;
constexpr int64_t kCopyBytes = int64_t{512} << 20;
constexpr int kRounds = 11;

// Returns memory whose pages are resident. It starts at an offset within a page, as most shards in an arena do.
std::byte* memory(int which, int64_t size_bytes) {
  static std::vector<std::vector<std::byte>> kept(4);
  std::vector<std::byte>& bytes = kept[static_cast<std::size_t>(which)];
  if (bytes.size() < static_cast<std::size_t>(size_bytes) + 8192) {
    bytes.assign(static_cast<std::size_t>(size_bytes) + 8192, std::byte{0x3c});
  }
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  return bytes.data() + (4096 - address % 4096) + 256 * (which + 1);
}

float* floats(int which, int64_t count = kElements) { return reinterpret_cast<float*>(memory(which, count * 4)); }

const HostLoops& loops() { return host_loops(best_isa()); }

// Returns a memcpy whose reads and writes together are `bytes_moved` bytes.
std::function<void()> copy_of(int64_t bytes_moved) {
  std::byte* to = memory(2, bytes_moved / 2);
  const std::byte* from = memory(3, bytes_moved / 2);
  return [to, from, bytes_moved] { std::memcpy(to, from, static_cast<std::size_t>(bytes_moved / 2)); };
}

void compare_with_copy(benchmark::State& state, int64_t bytes_moved, std::function<void()> ours) {
  PairedBenchmark(state, std::move(ours)).compare_with("copy", copy_of(bytes_moved)).run(bytes_moved);
}

// This benchmark uses the same arrays as its reference, the memcpy. With other physical pages, the measured ratio
// differed by up to a tenth.
void copy(benchmark::State& state) {
  std::byte *to = memory(2, kCopyBytes / 2), *from = memory(3, kCopyBytes / 2);
  compare_with_copy(state, kCopyBytes, [=] { loops().copy(to, from, kCopyBytes / 2); });
}

void fill(benchmark::State& state) {
  float* to = floats(0);
  compare_with_copy(state, kElements * 4, [=] { loops().fill(to, DType::kFloat32, 0.0f, kElements); });
}

void scale(benchmark::State& state) {
  float* x = floats(0);
  compare_with_copy(state, kElements * 8, [=] { loops().scale(x, 0.999f, kElements); });
}

void add(benchmark::State& state) {
  float *to = floats(0), *from = floats(1);
  compare_with_copy(state, kElements * 12, [=] { loops().add(to, from, kElements); });
}

void axpy(benchmark::State& state) {
  float *y = floats(0), *x = floats(1);
  compare_with_copy(state, kElements * 12, [=] { loops().axpy(y, 0.5f, x, kElements); });
}

void cast(benchmark::State& state, DType to_dtype, DType from_dtype) {
  const int64_t bytes_moved = kElements * (element_bytes(to_dtype) + element_bytes(from_dtype));
  std::byte *to = memory(0, kElements * 4), *from = memory(1, kElements * 4);
  compare_with_copy(state, bytes_moved, [=] { loops().cast(to, to_dtype, from, from_dtype, kElements); });
}

void split(benchmark::State& state) {
  auto* high = reinterpret_cast<uint16_t*>(memory(0, kElements * 4));
  auto* low = reinterpret_cast<int16_t*>(high + kElements);
  const float* master = floats(1);
  compare_with_copy(state, kElements * 8, [=] { loops().split(high, low, master, kElements); });
}

void merge(benchmark::State& state) {
  const auto* high = reinterpret_cast<const uint16_t*>(memory(0, kElements * 4));
  const auto* low = reinterpret_cast<const int16_t*>(high + kElements);
  float* master = floats(1);
  compare_with_copy(state, kElements * 8, [=] { loops().merge(master, high, low, kElements); });
}

// Returns the reference for loops that write almost nothing: a plain loop that reads the same bytes.
std::function<void()> read_of(const void* from, int64_t size_bytes) {
  return [from, size_bytes] {
    const auto* words = static_cast<const uint64_t*>(from);
    uint64_t folded = 0;
    for (int64_t i = 0; i < size_bytes / 8; ++i) folded ^= words[i];
    benchmark::DoNotOptimize(folded);
  };
}

void block_squares(benchmark::State& state) {
  const float* x = floats(0);
  auto* sums = reinterpret_cast<double*>(memory(1, kElements / kBlockElements * 8));
  PairedBenchmark(state, [=] { loops().block_squares(sums, x, kElements); })
      .compare_with("copy", copy_of(kElements * 4))
      .compare_with("read", read_of(x, kElements * 4))
      .run(kElements * 4);
}

void find_nonfinite(benchmark::State& state, DType dtype) {
  const int64_t count = kElements * 4 / element_bytes(dtype);
  const std::byte* x = memory(0, kElements * 4);
  PairedBenchmark(state, [=] { benchmark::DoNotOptimize(loops().find_nonfinite(x, dtype, count)); })
      .compare_with("copy", copy_of(kElements * 4))
      .compare_with("read", read_of(x, kElements * 4))
      .run(kElements * 4);
}

// The sum as a plain loop: reads every source once and writes the sum once.
void read_sum_write(float* __restrict to, const std::vector<const float*>& from, int64_t count) {
  const float *a = from[0], *b = from[1];
  if (from.size() == 2) {
    for (int64_t i = 0; i < count; ++i) to[i] = a[i] + b[i];
    return;
  }
  const float *c = from[2], *d = from[3];
  if (from.size() == 4) {
    for (int64_t i = 0; i < count; ++i) to[i] = a[i] + b[i] + c[i] + d[i];
    return;
  }
  const float *e = from[4], *f = from[5], *g = from[6], *h = from[7];
  for (int64_t i = 0; i < count; ++i) to[i] = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i] + h[i];
}

// Sums `source_count` fp32 arrays into a new one. With `squares` also computes the sum of squares of each block.
void sum_tree(benchmark::State& state, int source_count, bool squares) {
  const int64_t count = 2 * kElements / source_count;
  std::vector<const std::byte*> bases;
  std::vector<const float*> sources;
  for (int r = 0; r < source_count; ++r) {
    bases.push_back(memory(0, kElements * 8 + 8192 * source_count) + r * (count * 4 + 4096 + 256));
    sources.push_back(reinterpret_cast<const float*>(bases.back()));
  }
  float* to = floats(1, kElements);
  std::vector<double> sums(static_cast<std::size_t>(count / kBlockElements));
  const TreeSum sum{.bases = bases, .to = to, .count = count, .block_squares = squares ? sums.data() : nullptr};
  const int64_t bytes_moved = count * 4 * (source_count + 1);
  PairedBenchmark(state, [&] { loops().sum_tree(sum, 0, count); })
      .compare_with("copy", copy_of(bytes_moved))
      .compare_with("read_sum_write", [&] { read_sum_write(to, sources, count); })
      .run(bytes_moved);
}

// Sums into the first source, as a reduce into the rank's own shard does.
void sum_tree_in_place(benchmark::State& state, int source_count) {
  const int64_t count = 2 * kElements / source_count;
  std::vector<const std::byte*> bases;
  for (int r = 0; r < source_count; ++r) {
    bases.push_back(memory(0, kElements * 8 + 8192 * source_count) + r * (count * 4 + 4096 + 256));
  }
  auto* to = reinterpret_cast<float*>(const_cast<std::byte*>(bases[0]));
  const TreeSum sum{.bases = bases, .to = to, .count = count, .factor = 1.0f / static_cast<float>(source_count)};
  const int64_t bytes_moved = count * 4 * (source_count + 1);
  compare_with_copy(state, bytes_moved, [&] { loops().sum_tree(sum, 0, count); });
}

template <typename Body>
void bench(const std::string& name, Body body) {
  benchmark::RegisterBenchmark(name.c_str(), body)->UseManualTime()->Iterations(kRounds)->Unit(benchmark::kMillisecond);
}

bool register_all() {
  const std::pair<DType, const char*> kTypes[] = {
      {DType::kFloat32, "fp32"}, {DType::kBFloat16, "bf16"}, {DType::kFloat16, "fp16"}};
  bench("copy/host/bytes", copy);
  bench("fill/host/fp32", fill);
  bench("scale/host/fp32", scale);
  bench("add/host/fp32", add);
  bench("axpy/host/fp32", axpy);
  for (const auto& [from, from_name] : kTypes) {
    for (const auto& [to, to_name] : kTypes) {
      if (from == to) continue;
      bench(std::string("cast/host/") + from_name + "_to_" + to_name,
            [to = to, from = from](benchmark::State& state) { cast(state, to, from); });
    }
  }
  bench("split/host/fp32", split);
  bench("merge/host/fp32", merge);
  bench("block_squares/host/fp32", block_squares);
  for (const auto& [dtype, name] : kTypes) {
    bench(std::string("find_nonfinite/host/") + name,
          [dtype = dtype](benchmark::State& state) { find_nonfinite(state, dtype); });
  }
  for (const int k : {2, 4, 8}) {
    const std::string sources = "sum_tree/host/" + std::to_string(k) + "_sources";
    bench(sources, [k](benchmark::State& state) { sum_tree(state, k, false); });
    bench(sources + "_squares", [k](benchmark::State& state) { sum_tree(state, k, true); });
    bench(sources + "_in_place", [k](benchmark::State& state) { sum_tree_in_place(state, k); });
  }
  return true;
}

[[maybe_unused]] const bool kRegistered = register_all();

}  // namespace
}  // namespace aliquot
