// Compares the orthogonalization of a matrix, which is compute-bound, with a reference. The reference computes the same
// number of multiply-adds on factors that fit into the L1 and L2 caches.

#include <algorithm>
#include <benchmark/benchmark.h>
#include <vector>

#include "bench/paired.h"
#include "kernels/gemm/loops.h"
#include "kernels/system/parallel.h"
#include "kernels/system/thread_pool.h"
#include "optim/muon/orthogonalize.h"

namespace aliquot {
namespace {

constexpr int kThreads = 2, kRounds = 9;

std::vector<float> noise(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(i) * 2654435761u)) * 0x1p-31f;
  }
  return values;
}

void orthogonalize_matrix(benchmark::State& state) {
  const MatrixShape shape{state.range(0), state.range(1)};
  const Muon muon;
  const double work = orthogonalize_multiply_adds(shape, muon.iterations);
  ThreadPool pool(kThreads);
  std::vector<double> scratch(static_cast<size_t>(orthogonalize_scratch_bytes(shape)) / sizeof(double));
  std::vector<float> matrix = noise(shape.rows * shape.columns);
  const auto ours = [&] {
    orthogonalize_on_host({muon, matrix.data(), shape, reinterpret_cast<std::byte*>(scratch.data())}, pool);
  };

  // Packed factors of 48 KiB and 96 KiB, which all threads read.
  constexpr int64_t kRows = 48, kDepth = 256, kColumns = 96;
  const ProductLoops& loops = product_loops(SumRounding::kSeparate);
  const std::vector<float> a = noise(kRows * kDepth), b = noise(kDepth * kColumns);
  const auto times = static_cast<int64_t>(work / static_cast<double>(kThreads * kRows * kDepth * kColumns));
  const auto floor = [&] {
    for_parts(pool, [&](int64_t) {
      std::vector<float> product(static_cast<size_t>(kRows * kColumns));
      for (int64_t i = 0; i < times; ++i)
        loops.multiply({a.data(), b.data(), kRows, kColumns, kDepth, product.data(), kColumns});
    });
  };
  PairedBenchmark(state, ours).compare_with("floor", floor).run(static_cast<int64_t>(work));
  // The argument of run() above is a number of multiply-adds, not of bytes. Each multiply-add is 2 operations.
  state.counters["GFLOP/s"] = 2 * state.counters["GB/s"];
  state.counters.erase("GB/s");
}

BENCHMARK(orthogonalize_matrix)
    ->Name("muon/host/orthogonalize")
    ->Args({768, 768})
    ->Args({768, 3072})
    ->UseManualTime()
    ->Iterations(kRounds)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace aliquot
