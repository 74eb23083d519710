// Measures each matrix product of a training step of GPT-2 124M with 256 tokens per rank, on 2 ranks of one thread.
// The ranks run at the same time, so they share the memory bandwidth as in a step. Counters are rates of one core:
//
//   GFLOP/s       in place: each call uses other operands, which come from memory, as in a step. Time is of these calls
//   alone         each call uses the same operands, which the caches hold if they are large enough
//   peak          the multiply-add instructions alone, in registers
//   of_peak       GFLOP/s divided by the peak of the same round; of_peak_alone likewise
//   oneDNN        dnnl_sgemm in place (fp32), if the system has oneDNN
//   torch         torch.mm in place, with scripts/bench.sh --with-torch. It writes bf16 gradients, and we write fp32
//
// products/PRECISION/step adds up the products of a step, and needs the other benchmarks of its precision.
#include <algorithm>
#include <barrier>
#include <benchmark/benchmark.h>
#include <chrono>
#include <fmt/format.h>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/paired.h"
#include "bench/product_operands.h"
#include "bench/product_peaks.h"
#include "bench/torch_process.h"

namespace aliquot {
namespace {

constexpr int kRanks = 2, kRounds = 5;
constexpr double kSecondsPerMeasurement = 0.05;

/// Runs `work` on kRanks threads at the same time. Returns the seconds of the slowest thread.
double seconds_on_all_ranks(const std::function<void(int rank)>& work) {
  std::vector<double> seconds(kRanks);
  std::barrier start(kRanks);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      start.arrive_and_wait();
      const auto began = std::chrono::steady_clock::now();
      work(rank);
      seconds[static_cast<std::size_t>(rank)] =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return *std::ranges::max_element(seconds);
}

/// The median rates of one product, in operations per second and core. 0: not measured.
struct Rates {
  double in_place = 0, alone = 0, peak = 0, of_peak = 0, of_peak_alone = 0, onednn = 0, torch = 0;
};

/// Measures one product in rounds, so that all rates of a round have the same clock rate.
class Measurement {
 public:
  Measurement(const StepProduct& product, DType type)
      : product_(product), type_(type), peak_(peak_loop(type)), onednn_(type == DType::kFloat32 && has_onednn()) {
    for (int rank = 0; rank < kRanks; ++rank) operands_.push_back(std::make_unique<ProductOperands>(product, type));
    const double once = seconds_per_call(operands_[0]->set_count(), &ProductOperands::run);
    calls_ = std::max(3, static_cast<int>(kSecondsPerMeasurement / once));
    if (TorchProcess::available()) start_torch();
  }

  /// Returns the seconds of one product in place.
  double round() {
    const double flops = static_cast<double>(product_.operations());
    const double in_place = seconds_per_call(calls_, &ProductOperands::run);
    const double alone = seconds_per_call(calls_, [](ProductOperands& o, int) { o.run(0); });
    in_place_.push_back(flops / in_place);
    alone_.push_back(flops / alone);
    if (onednn_) onednn_rates_.push_back(flops / seconds_per_call(calls_, &ProductOperands::run_onednn));
    if (!torch_.empty()) {
      const double seconds = seconds_on_all_ranks([&](int rank) { torch_[static_cast<std::size_t>(rank)]->run(); });
      torch_rates_.push_back(flops * calls_ / seconds);
    }
    if (peak_) {
      const double seconds = seconds_on_all_ranks([&](int) { peak_->run(); });
      peaks_.push_back(static_cast<double>(peak_->operations) / seconds);
      of_peak_.push_back(in_place_.back() / peaks_.back());
      of_peak_alone_.push_back(alone_.back() / peaks_.back());
    }
    return in_place;
  }

  Rates rates() const {
    const auto middle = [](const std::vector<double>& values) { return values.empty() ? 0 : median(values); };
    return {middle(in_place_),      middle(alone_),        middle(peaks_),      middle(of_peak_),
            middle(of_peak_alone_), middle(onednn_rates_), middle(torch_rates_)};
  }

 private:
  void start_torch() {
    const auto& p = product_;
    const std::string pass = p.name.substr(p.name.find('/') + 1);
    const std::vector<std::string> words{ALIQUOT_BENCH_PRODUCTS_TORCH,
                                         type_ == DType::kFloat32 ? "fp32" : "bf16",
                                         pass,
                                         std::to_string(p.rows),
                                         std::to_string(p.inputs),
                                         std::to_string(p.outputs),
                                         p.outputs_first ? "1" : "0",
                                         std::to_string(calls_)};
    for (int rank = 0; rank < kRanks; ++rank) torch_.push_back(std::make_unique<TorchProcess>(words));
  }

  double seconds_per_call(int calls, const std::function<void(ProductOperands&, int)>& call) {
    const double seconds = seconds_on_all_ranks([&](int rank) {
      for (int i = 0; i < calls; ++i) call(*operands_[static_cast<std::size_t>(rank)], i);
    });
    return seconds / calls;
  }

  StepProduct product_;
  DType type_;
  std::optional<PeakLoop> peak_;
  bool onednn_;
  int calls_ = 1;
  std::vector<std::unique_ptr<ProductOperands>> operands_;
  std::vector<double> in_place_, alone_, peaks_, of_peak_, of_peak_alone_, onednn_rates_, torch_rates_;
  std::vector<std::unique_ptr<TorchProcess>> torch_;  // a process for each rank; empty without PyTorch
};

std::map<std::string, Rates>& measured() {
  static std::map<std::string, Rates> rates;
  return rates;
}

void set_counters(benchmark::State& state, const Rates& rates) {
  state.counters["GFLOP/s"] = rates.in_place * 1e-9;
  state.counters["alone"] = rates.alone * 1e-9;
  if (rates.peak > 0) {
    state.counters["peak"] = rates.peak * 1e-9;
    state.counters["of_peak"] = rates.of_peak;
    state.counters["of_peak_alone"] = rates.of_peak_alone;
  }
  if (rates.onednn > 0) state.counters["oneDNN"] = rates.onednn * 1e-9;
  if (rates.torch > 0) state.counters["torch"] = rates.torch * 1e-9;
}

void measure_product(benchmark::State& state, const std::string& name, const StepProduct& product, DType type) {
  Measurement measurement(product, type);
  for (auto _ : state) state.SetIterationTime(measurement.round());
  measured()[name] = measurement.rates();
  set_counters(state, measured()[name]);
}

/// Adds up the times of the products of a step.
void measure_step(benchmark::State& state, const std::string& precision) {
  double operations = 0, seconds = 0, alone = 0, at_peak = 0, onednn = 0, torch = 0;
  Rates rates;
  for (const StepProduct& product : step_products()) {
    const auto found = measured().find(precision + "/" + product.name);
    if (found == measured().end()) return state.SkipWithError("needs all products of its precision");
    const Rates& each = found->second;
    const double own = static_cast<double>(product.operations()) * product.count;
    operations += own;
    seconds += own / each.in_place;
    alone += own / each.alone;
    if (each.peak > 0) at_peak += own / each.peak;
    if (each.onednn > 0) onednn += own / each.onednn;
    if (each.torch > 0) torch += own / each.torch;
  }
  for (auto _ : state) state.SetIterationTime(seconds);
  rates.in_place = operations / seconds;
  rates.alone = operations / alone;
  if (at_peak > 0) rates.peak = operations / at_peak;
  rates.of_peak = at_peak / seconds;
  rates.of_peak_alone = at_peak / alone;
  if (onednn > 0) rates.onednn = operations / onednn;
  if (torch > 0) rates.torch = operations / torch;
  set_counters(state, rates);
}

const bool registered = [] {
  for (const auto& [precision, type] : {std::pair{"fp32", DType::kFloat32}, {"bf16", DType::kBFloat16}}) {
    for (const StepProduct& product : step_products()) {
      const std::string name = fmt::format("{}/{}", precision, product.name);
      benchmark::RegisterBenchmark(
          ("products/" + name).c_str(),
          [name, product, type = type](benchmark::State& state) { measure_product(state, name, product, type); })
          ->UseManualTime()
          ->Iterations(kRounds)
          ->Unit(benchmark::kMillisecond);
    }
    benchmark::RegisterBenchmark(
        fmt::format("products/{}/step", precision).c_str(),
        [precision = std::string(precision)](benchmark::State& state) { measure_step(state, precision); })
        ->UseManualTime()
        ->Iterations(1)
        ->Unit(benchmark::kMillisecond);
  }
  return true;
}();

}  // namespace
}  // namespace aliquot
