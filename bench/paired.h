#pragma once
// Measures the benchmarked code and its references alternately, in the same run. The machine's speed may change within
// seconds, so a ratio of times that were measured a minute apart is unreliable.

#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace aliquot {

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// A benchmark whose iterations are rounds. Each round runs our code and every reference once, in rotating order.
/// Register it with UseManualTime() and Iterations(). Reports the time of our code and its median GB/s. For each
/// reference, reports the counter `ratio_to_NAME`: the median over rounds of our time divided by the reference's time.
class PairedBenchmark {
 public:
  PairedBenchmark(benchmark::State& state, std::function<void()> ours) : state_(state) { add("", std::move(ours)); }

  PairedBenchmark& compare_with(const std::string& name, std::function<void()> reference) {
    add(name, std::move(reference));
    return *this;
  }

  /// `bytes_moved` is the number of bytes that one run of our code reads and writes. 0 omits the counter GB/s.
  void run(int64_t bytes_moved) {
    for (Work& work : works_) work.body();  // warm-up: touches pages and loads code
    std::size_t first = 0;
    for (auto _ : state_) {
      for (std::size_t i = 0; i < works_.size(); ++i) time(works_[(first + i) % works_.size()]);
      ++first;
      state_.SetIterationTime(works_[0].seconds.back());
    }
    report(bytes_moved);
  }

 private:
  struct Work {
    std::string name;
    std::function<void()> body;
    std::vector<double> seconds;
  };

  void add(const std::string& name, std::function<void()> body) { works_.push_back({name, std::move(body), {}}); }

  static void time(Work& work) {
    const auto start = std::chrono::steady_clock::now();
    work.body();
    benchmark::ClobberMemory();
    work.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }

  void report(int64_t bytes_moved) {
    const std::vector<double>& ours = works_[0].seconds;
    if (bytes_moved > 0) state_.counters["GB/s"] = static_cast<double>(bytes_moved) / median(ours) * 1e-9;
    for (std::size_t w = 1; w < works_.size(); ++w) {
      std::vector<double> ratios;
      for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / works_[w].seconds[i]);
      state_.counters["ratio_to_" + works_[w].name] = median(ratios);
    }
  }

  benchmark::State& state_;
  std::vector<Work> works_;
};

}  // namespace aliquot
