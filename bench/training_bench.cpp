// Trains GPT-2 124M with sequence 256 and micro-batch 1 on 2 ranks of one thread each, at every ZeRO stage, in fp32 and
// bf16. Reports tokens/s, memory per rank (Pss) and milliseconds of each part of a step. ratio_to_products compares the
// step with its matrix products alone, in the same round. With PyTorch (scripts/bench.sh --with-torch), each round also
// compares ZeRO stage 3 with FSDP2, and ZeRO stage 0 with DDP. times_fsdp2 is the speedup over FSDP2.
#include <algorithm>
#include <benchmark/benchmark.h>
#include <exception>
#include <fmt/format.h>
#include <map>

#include "bench/paired.h"
#include "bench/training_products.h"
#include "bench/training_runs.h"

namespace aliquot {
namespace {

constexpr int kRounds = 3, kSteps = 6;
constexpr int kRanks = 2, kSequence = 256;
constexpr double kGiB = 1 << 30;

struct Case {
  int zero_stage;
  std::string precision;

  std::string peer() const { return zero_stage == 3 ? "fsdp2" : zero_stage == 0 ? "ddp" : ""; }
};

/// Results of a case, one value per round.
struct Rounds {
  std::vector<double> seconds, to_products, times_peer, peer_seconds, share_gib, peer_gib;
  std::map<std::string, std::vector<double>> parts;

  void run(const Case& one) {
    const TrainingRun ours = run_aliquot({one.zero_stage, one.precision}, kSteps);
    seconds.push_back(median(ours.step_seconds));
    share_gib.push_back(static_cast<double>(ours.share_bytes) / kGiB);
    for (const auto& [part, spent] : ours.part_seconds) parts[part].push_back(spent);
    const DType compute = one.precision == "bf16" ? DType::kBFloat16 : DType::kFloat32;
    to_products.push_back(seconds.back() / seconds_of_products(compute, kRanks, kSequence));
    if (!has_torch() || one.peer().empty()) return;
    const TrainingRun theirs = run_torch(one.peer(), one.precision, kSteps);
    peer_seconds.push_back(median(theirs.step_seconds));
    peer_gib.push_back(static_cast<double>(theirs.share_bytes) / kGiB);
    times_peer.push_back(peer_seconds.back() / seconds.back());
  }
};

void measure(benchmark::State& state, const Case& one) {
  Rounds rounds;
  for (auto _ : state) {
    try {
      rounds.run(one);
    } catch (const std::exception& error) {
      return state.SkipWithError(error.what());
    }
    state.SetIterationTime(rounds.seconds.back());
  }
  constexpr double kTokens = kRanks * kSequence;
  state.counters["tokens_per_second"] = kTokens / median(rounds.seconds);
  state.counters["ratio_to_products"] = median(rounds.to_products);
  state.counters["GiB_a_rank"] = median(rounds.share_gib);
  for (const auto& [part, spent] : rounds.parts) state.counters["ms_" + part] = 1e3 * median(spent);
  if (rounds.times_peer.empty()) return;
  state.counters["times_" + one.peer()] = median(rounds.times_peer);
  state.counters[one.peer() + "_tokens_per_second"] = kTokens / median(rounds.peer_seconds);
  state.counters[one.peer() + "_GiB_a_rank"] = median(rounds.peer_gib);
}

const bool registered = [] {
  for (const char* precision : {"fp32", "bf16"}) {
    for (const int stage : {0, 1, 2, 3}) {
      const Case one{stage, precision};
      benchmark::RegisterBenchmark(fmt::format("training/host/stage{}_{}", stage, precision).c_str(),
                                   [one](benchmark::State& state) { measure(state, one); })
          ->UseManualTime()
          ->Iterations(kRounds)
          ->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace aliquot
