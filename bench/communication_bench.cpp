// Collectives on one host, with ranks as threads and as MPI processes. ratio_to_floor and ratio_to_memcpy compare them
// with plain loops over the same bytes on the same number of threads. ratio_to_mpi compares them with Open MPI's own
// collective. bench/communication_worker*.cpp runs with the required number of ranks. Each round measures every
// compared variant once.
#include <benchmark/benchmark.h>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/communication_team.h"
#include "bench/paired.h"

namespace aliquot {
namespace {

constexpr int kRounds = 21;

struct Case {
  std::string operation, world;
  int rank_count;
};

/// Maps the name of a variant to its times in seconds, one per round.
using Rounds = std::map<std::string, std::vector<double>>;

Rounds start_worker(const std::string& operation, int rank_count) {
  const std::string launcher = ALIQUOT_BENCH_MPIEXEC;
  std::string command = fmt::format("{} {} {} {}", ALIQUOT_BENCH_WORKER, operation, rank_count, kRounds);
  if (!launcher.empty()) {
    command = fmt::format(
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 {} -n {} --oversubscribe --bind-to none {}",
        launcher, rank_count, command);
  }
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot start the command: " + command);
  Rounds rounds;
  char line[512];
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    std::istringstream words(line);
    double microseconds = 0;
    for (std::string variant; words >> variant >> microseconds;) rounds[variant].push_back(microseconds * 1e-6);
  }
  if (pclose(pipe) != 0) throw std::runtime_error("the command failed: " + command);
  return rounds;
}

const Rounds& rounds_of(const std::string& operation, int rank_count) {
  static std::map<std::pair<std::string, int>, Rounds> done;
  const auto [place, is_new] = done.try_emplace({operation, rank_count});
  if (is_new) place->second = start_worker(operation, rank_count);
  return place->second;
}

void add_ratio(benchmark::State& state, const std::string& name, const std::vector<double>& ours, const Rounds& rounds,
               const std::string& reference) {
  const auto found = rounds.find(reference);
  if (found == rounds.end()) return;
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / found->second[i]);
  state.counters[name] = median(ratios);
}

void measure(benchmark::State& state, const Case& one) {
  const bool is_view = one.operation == "view";
  Rounds rounds;
  try {
    rounds = rounds_of(one.operation, one.rank_count);
  } catch (const std::exception& error) {
    state.SkipWithError(error.what());
    return;
  }
  const std::vector<double>& ours = rounds[one.world];
  if (ours.empty()) {
    state.SkipWithError(("the worker printed no times for " + one.world).c_str());
    return;
  }
  std::size_t round = 0;
  for (auto _ : state) state.SetIterationTime(ours[round++ % ours.size()] / (is_view ? bench::kViewCount : 1));
  if (is_view) {
    state.counters["microseconds"] = median(ours) / bench::kViewCount * 1e6;
    return;
  }
  const bool is_sum = one.operation == "reduce_scatter";
  // `moved` is the number of bytes that all ranks together read and write. Each rank reads as many bytes as a full
  // buffer has. It writes its part of the sum in a reduce-scatter, and a full buffer in an all-gather.
  const double full = static_cast<double>(bench::kBufferBytes);
  const double moved = is_sum ? full * one.rank_count + full : 2 * full * one.rank_count;
  state.counters["GB/s"] = moved / median(ours) * 1e-9;
  add_ratio(state, is_sum ? "ratio_to_floor" : "ratio_to_memcpy", ours, rounds, "plain");
  add_ratio(state, "ratio_to_mpi", ours, rounds, "open_mpi");
}

const bool registered = [] {
  const std::vector<std::string> worlds = std::string(ALIQUOT_BENCH_MPIEXEC).empty()
                                              ? std::vector<std::string>{"threads"}
                                              : std::vector<std::string>{"threads", "mpi"};
  for (const char* operation : {"reduce_scatter", "all_gather", "view"}) {
    for (const int rank_count : {2, 4}) {
      for (const std::string& world : worlds) {
        const Case one{operation, world, rank_count};
        const std::string thing = one.operation == "view" ? "all_gather_view" : one.operation;
        benchmark::RegisterBenchmark(fmt::format("{}/host/{}_{}_ranks", thing, world, rank_count).c_str(),
                                     [one](benchmark::State& state) { measure(state, one); })
            ->UseManualTime()
            ->Iterations(kRounds)
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace aliquot
