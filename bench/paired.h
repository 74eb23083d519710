#pragma once
// Measuring against a reference in the same run: this machine's speed changes from one second to the next, and a ratio of
// two figures taken a minute apart says little.

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

/// One benchmark whose iterations are rounds: in each, every piece of work runs once, the order turning from round to
/// round. Reports the median time of ours (register with UseManualTime and Iterations), GB/s of the bytes it moves, and a
/// counter `ratio_to_NAME` for every reference: the median of the rounds' ratios.
class PairedBenchmark {
 public:
  PairedBenchmark(benchmark::State& state, std::function<void()> ours) : state_(state) { add("", std::move(ours)); }

  PairedBenchmark& compare_with(const std::string& name, std::function<void()> reference) {
    add(name, std::move(reference));
    return *this;
  }

  /// `bytes_moved`: read and written by one run of ours; 0: no figure of it.
  void run(int64_t bytes_moved) {
    for (Work& work : works_) work.body();  // pages touched, code loaded
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
