// The cost of wrapping the documentation's example: apps/examples/transformer.c compared with transformer_sharded.cpp.
// Reports changed lines, time on one rank, and memory per rank and losses at every ZeRO stage.
#include <algorithm>
#include <aliquot/aliquot.h>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <math.h>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <vector>

#include "bench/paired.h"

// The example, unchanged except for the name of main(). The headers that it includes are already included above.
namespace wrapped {
#define main example_main
#include "apps/examples/transformer_sharded.cpp"
#undef main
}  // namespace wrapped

extern "C" {
int64_t plain_state_bytes(void);
void* plain_make(void);
double plain_step(void* model, int step, int parts);
void plain_free(void* model);
}

namespace aliquot {
namespace {

constexpr int kRounds = 100, kSteps = 10;
const WorldOptions kHost = {.device = DeviceChoice::kHost, .kind = WorldChoice::kThreads, .threads_per_rank = 1};

class Plain {
 public:
  Plain() : model_(plain_make()) {}
  ~Plain() { plain_free(model_); }
  Plain(const Plain&) = delete;
  Plain& operator=(const Plain&) = delete;

  double step(int parts) { return plain_step(model_, ++step_, parts); }

 private:
  void* model_;
  int step_ = 0;
};

/// Runs the training loop of the sharded example one step at a time.
class Sharded {
 public:
  Sharded(World& world, int stage)
      : world_(world), engine_(world, {.zero_stage = stage, .optimizer = AdamW{.lr = 0.003f}, .clip = 0}) {
    wrapped::declare(engine_, model_.get());
  }

  double step() {
    engine_.micro_batch();
    wrapped::load_batch(model_.get(), step_++ * world_.rank_count() + world_.rank());
    for (int unit = 0; unit < wrapped::UNITS; ++unit) {
      const auto live = engine_.units()[unit].forward();
      wrapped::forward(model_.get(), unit);
    }
    for (int unit = wrapped::UNITS - 1; unit >= 0; --unit) {
      const auto live = engine_.units()[unit].backward();
      wrapped::backward(model_.get(), unit);
    }
    double loss = model_->loss / world_.rank_count();
    if (engine_.step().skipped) throw std::runtime_error("a step was skipped");
    world_.sum({&loss, 1});
    return loss;
  }

  Engine& engine() { return engine_; }

 private:
  World& world_;
  std::unique_ptr<wrapped::Model> model_ = std::make_unique<wrapped::Model>();
  Engine engine_;
  int step_ = 0;
};

/// Measures steps of the sharded program on one rank and steps of the plain program alternately.
void step_time(benchmark::State& state, int stage) {
  World::threads(
      1,
      [&](World& world) {
        Plain plain;
        Sharded sharded(world, stage);
        PairedBenchmark paired(state, [&] { sharded.step(); });
        paired.compare_with("unwrapped", [&] { plain.step(1); });
        paired.run(0);
      },
      kHost);
}

struct Memory {
  int64_t planned_bytes = 0, measured_bytes = 0;
};

/// Returns the planned and the measured peak memory of rank 0. All ranks need the same amount of memory.
Memory memory_of(World& world, Engine& engine) {
  return {account(engine.plan().schedule).peak_bytes, world.device().ledger().in_use_peak_bytes()};
}

/// Reports losses and memory on several ranks, compared with the plain program on the same data.
void memory_and_losses(benchmark::State& state, int stage, int rank_count) {
  Plain plain;
  std::vector<double> alone;
  for (int step = 0; step < kSteps; ++step) alone.push_back(plain.step(rank_count));
  for (auto _ : state) {
    double off = 0;
    std::vector<double> seconds;
    Memory memory;
    const auto body = [&](World& world) {
      Sharded sharded(world, stage);
      for (const double expected : alone) {
        const auto start = std::chrono::steady_clock::now();
        const double loss = sharded.step();
        if (world.rank() != 0) continue;
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        off = std::max(off, std::abs(loss - expected) / expected);
      }
      if (world.rank() == 0) memory = memory_of(world, sharded.engine());
    };
    World::threads(rank_count, body, kHost);
    state.SetIterationTime(median(seconds));
    state.counters["KiB_planned"] = static_cast<double>(memory.planned_bytes) / 1024;
    state.counters["KiB_measured"] = static_cast<double>(memory.measured_bytes) / 1024;
    state.counters["ratio_to_unwrapped_state"] =
        static_cast<double>(memory.measured_bytes) / static_cast<double>(plain_state_bytes());
    state.counters["loss_off"] = off;
  }
}

/// Reports the lines added and removed between the two files, as counted by diff.
void lines(benchmark::State& state) {
  for (auto _ : state) {
    const std::string command = "cd '" ALIQUOT_BENCH_EXAMPLES "' && diff transformer.c transformer_sharded.cpp";
    FILE* const difference = popen(command.c_str(), "r");
    if (difference == nullptr) return state.SkipWithError("cannot start diff on the two examples");
    char line[512];
    int added = 0, removed = 0;
    while (std::fgets(line, sizeof line, difference) != nullptr) {
      added += line[0] == '>';
      removed += line[0] == '<';
    }
    pclose(difference);
    state.SetIterationTime(0);
    state.counters["lines_added"] = added;
    state.counters["lines_removed"] = removed;
  }
}

void add(const std::string& name, int rounds, const std::function<void(benchmark::State&)>& body) {
  benchmark::RegisterBenchmark(name.c_str(), body)->UseManualTime()->Iterations(rounds)->Unit(benchmark::kMillisecond);
}

const bool registered = [] {
  add("example/host/difference", 1, lines);
  for (const int stage : {0, 1, 2, 3}) {
    add(fmt::format("example/host/stage_{}_1_rank", stage), kRounds,
        [stage](benchmark::State& state) { step_time(state, stage); });
  }
  for (const int ranks : {1, 2, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      add(fmt::format("example/host/memory_stage_{}_{}_ranks", stage, ranks), 1,
          [=](benchmark::State& state) { memory_and_losses(state, stage, ranks); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace aliquot
