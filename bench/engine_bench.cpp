// Measures the overhead of the engine. Compares a step with a plain loop over the same kernels. Reports microseconds
// per scope and per unit, the share of communication that is hidden under compute, and the time of the planner.
#include <benchmark/benchmark.h>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <memory>
#include <stdexcept>
#include <sys/mman.h>
#include <thread>
#include <vector>

#include "apps/models/gpt2.h"
#include "apps/train/wrap.h"
#include "bench/paired.h"
#include "engine/proof/validate.h"
#include "kernels/device/host_stream.h"
#include "optim/update/update.h"
#include "tests/support/plain_memory.h"

namespace aliquot {
namespace {

constexpr int kRounds = 25;
constexpr int64_t kBatch = 4;

ModelShape nano() { return find_model_preset("gpt2-nano")->shape; }

/// A model with its activations and one batch of tokens.
struct Subject {
  explicit Subject(Stream& stream)
      : loops(make_host_backend(as_host_stream(stream).pool())),
        model(nano(), {.batch = kBatch}, *loops),
        activations(model.activations()) {
    model.set_loss_factor(1.0f / static_cast<float>(kBatch * nano().context));
    for (int64_t i = 0; i < kBatch * nano().context; ++i) {
      tokens.push_back(static_cast<int32_t>((i * 37 + i / 11) % nano().vocabulary));
      targets.push_back(static_cast<int32_t>((i * 37 + 37) % nano().vocabulary));
    }
    model.set_batch({tokens, targets});
  }
  std::unique_ptr<Backend> loops;
  Gpt2 model;
  PlainMemory activations;  // used only by the plain loop
  std::vector<int32_t> tokens, targets;
};

/// The same training without the engine: one array with tensors aligned to blocks, and one update over all of it.
class PlainLoop {
 public:
  explicit PlainLoop(Stream& stream) : stream_(stream), subject_(stream) {
    for (const ModelUnit& unit : subject_.model.units()) {
      for (const ModelTensor& tensor : unit.tensors) {
        const int64_t count = tensor.element_count();
        segments_.push_back({.offset = count_, .count = count, .global_offset = 0, .parameter = 0});
        count_ += (count + kBlockElements - 1) / kBlockElements * kBlockElements;
      }
    }
    for (auto& array : arrays_) array = make();
    std::size_t next = 0;
    for (const ModelUnit& unit : subject_.model.units()) {
      if (unit.gradients == GradientMode::kAdd) added_.push_back(next);
      for (const ModelTensor& tensor : unit.tensors) {
        float* const parameter = arrays_[0] + segments_[next].offset;
        tensor.parameter->data = parameter;
        tensor.gradient->data = arrays_[1] + segments_[next].offset;
        for (int64_t i = 0; i < segments_[next].count; ++i)
          parameter[i] = 0.02f * static_cast<float>((i * 7919) % 201 - 100) / 100.0f;
        ++next;
      }
    }
    squares_.resize(static_cast<std::size_t>(count_ / kBlockElements));
  }
  ~PlainLoop() {
    for (float* array : arrays_) std::free(array);
  }

  void step() {
    const int uses = static_cast<int>(subject_.model.uses().size());
    const Kernels& kernels = stream_device().kernels();
    for (const std::size_t t : added_)
      kernels.fill(stream_, arrays_[1] + segments_[t].offset, DType::kFloat32, 0.0f, segments_[t].count);
    for (int use = 0; use < uses; ++use) {
      subject_.model.set_memory(subject_.activations.of(use));
      subject_.model.forward(use);
    }
    for (int use = uses - 1; use >= 0; --use) {
      subject_.model.set_memory(subject_.activations.of(use));
      subject_.model.backward(use);
    }
    kernels.block_squares(stream_, squares_.data(), arrays_[1], count_);
    double sum = 0;
    for (const double square : squares_) sum += square;
    ++update_;
    const UpdateStep update{.rule = rule_at(AdamW{}, 3e-4, update_),
                            .gradient_factor = sum > 1 ? static_cast<float>(1 / std::sqrt(sum)) : 1.0f,
                            .step = update_};
    UpdateArgs args{.gradient = arrays_[1], .master = {.whole = arrays_[0]}};
    args.states[0] = arrays_[2];
    args.states[1] = arrays_[3];
    args.segments = segments_.data();
    args.segment_count = static_cast<int64_t>(segments_.size());
    args.count = count_;
    update_kernels(DeviceKind::kHost).update(stream_, args, update);
  }

 private:
  static Device& stream_device() {
    static const auto device = make_host_device(1);
    return *device;
  }
  float* make() const {
    constexpr int64_t kHugePage = 2 << 20;
    const int64_t bytes = (count_ * 4 + kHugePage - 1) / kHugePage * kHugePage;
    void* data = std::aligned_alloc(kHugePage, static_cast<std::size_t>(bytes));
    madvise(data, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
    std::memset(data, 0, static_cast<std::size_t>(bytes));
    return static_cast<float*>(data);
  }

  Stream& stream_;
  Subject subject_;
  std::vector<Segment> segments_;
  std::vector<std::size_t> added_;
  int64_t count_ = 0, update_ = 0;
  float* arrays_[4] = {};  // parameters, gradients, two moments
  std::vector<double> squares_;
};

void step_against_plain_loop(benchmark::State& state, int stage) {
  World::threads(1,
                 [&](World& world) {
                   const auto stream = world.device().make_stream(Lane::kCompute);
                   PlainLoop plain(*stream);
                   Subject subject(*stream);
                   Engine engine(world, {.zero_stage = stage});
                   wrap(engine, subject.model);
                   engine.materialize(initial_values(subject.model, 1));
                   PairedBenchmark paired(state, [&] {
                     run_micro_batch(engine, subject.model);
                     if (engine.step().skipped) throw std::runtime_error("a step was skipped");
                   });
                   paired.compare_with("plain_loop", [&] { plain.step(); });
                   paired.run(0);
                 },
                 {.device = DeviceChoice::kHost, .threads_per_rank = 1});
}

/// Measures steps of units without computation, so that the measured time is that of the engine.
void unit_overhead(benchmark::State& state, int stage, int unit_count) {
  World::threads(1,
                 [&](World& world) {
                   const auto count = static_cast<std::size_t>(unit_count);
                   std::vector<void*> values(count), gradients(count);  // must outlive the engine
                   Engine engine(world, {.zero_stage = stage});
                   for (int u = 0; u < unit_count; ++u)
                     engine.add_unit(fmt::format("u{}", u)).add("w", {kBlockElements}, &values[u], &gradients[u]);
                   engine.materialize([](const auto&, int64_t, std::span<float> v) { std::ranges::fill(v, 1.0f); });
                   std::vector<double> scopes, steps;
                   for (auto _ : state) {
                     const auto start = std::chrono::steady_clock::now();
                     const auto since_start = [&] {
                       return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
                     };
                     engine.micro_batch();
                     for (Unit& unit : engine.units()) auto live = unit.forward();
                     for (Unit& unit : reversed(engine.units())) auto live = unit.backward();
                     scopes.push_back(since_start());
                     if (engine.step().skipped) throw std::runtime_error("a step was skipped");
                     steps.push_back(since_start());
                     state.SetIterationTime(steps.back());
                   }
                   // The time of a scope includes the time to start gathers and reduces when the scope closes. The time
                   // of a step also includes updates.
                   state.counters["microseconds_per_scope"] = median(scopes) * 1e6 / (2 * unit_count);
                   state.counters["microseconds_per_unit"] = median(steps) * 1e6 / unit_count;
                 },
                 {.device = DeviceChoice::kHost, .threads_per_rank = 1});
}

/// Trains with two ranks on two threads. Reports medians over the timed steps.
void hidden_share(benchmark::State& state, int stage, GatherMode gather) {
  for (auto _ : state) {
    World::threads(2,
                   [&](World& world) {
                     const auto stream = world.device().make_stream(Lane::kCompute);
                     Subject subject(*stream);
                     EngineOptions options = {.zero_stage = stage};
                     if (stage == 3) options.gather = gather;
                     Engine engine(world, options);
                     wrap(engine, subject.model);
                     engine.materialize(initial_values(subject.model, 1));
                     engine.record_timelines();
                     std::vector<double> hidden, communication, step;
                     for (int i = 0; i < kRounds; ++i) {
                       run_micro_batch(engine, subject.model);
                       if (engine.step().skipped) throw std::runtime_error("a step was skipped");
                       const Timeline timeline = engine.timeline();
                       if (timeline.operations.empty()) continue;
                       hidden.push_back(timeline.hidden_share());
                       communication.push_back(timeline.communication_seconds);
                       step.push_back(timeline.step_seconds);
                     }
                     if (world.rank() != 0) return;
                     state.SetIterationTime(median(step));
                     state.counters["hidden_share"] = median(hidden);
                     state.counters["communication_share"] = median(communication) / median(step);
                   },
                   {.device = DeviceChoice::kHost, .threads_per_rank = 1});
  }
}

void planning(benchmark::State& state, int unit_count, int rank_count) {
  ModelSpec model;
  for (int u = 0; u < unit_count; ++u) {
    model.units.push_back(
        {fmt::format("u{}", u), {{.tensor = {fmt::format("u{}.w", u), {1 << 20}}}}, GradientMode::kAdd});
    model.uses.push_back({u});
  }
  Topology topology = Topology::one_host(rank_count);
  for (int r = 0; r < rank_count; ++r) topology.node_of_rank[r] = r / 8;
  std::vector<double> proving;
  for (auto _ : state) {
    const Plan planned = plan(model, {.zero_stage = 3}, topology);
    const auto start = std::chrono::steady_clock::now();
    if (!validate(planned).empty()) state.SkipWithError("the validator rejected the plan");
    proving.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    state.counters["operations"] = static_cast<double>(planned.schedule.operations.size());
  }
  state.counters["validate_ms"] = median(proving) * 1e3;
}

const bool registered = [] {
  for (const int stage : {0, 3}) {
    benchmark::RegisterBenchmark(fmt::format("step/host/stage_{}_1_rank", stage).c_str(),
                                 [stage](benchmark::State& state) { step_against_plain_loop(state, stage); })
        ->UseManualTime()
        ->Iterations(kRounds)
        ->Unit(benchmark::kMillisecond);
  }
  for (const int stage : {0, 1, 2, 3}) {
    benchmark::RegisterBenchmark(fmt::format("unit/host/stage_{}_200_units", stage).c_str(),
                                 [stage](benchmark::State& state) { unit_overhead(state, stage, 200); })
        ->UseManualTime()
        ->Iterations(200)
        ->Unit(benchmark::kMicrosecond);
  }
  for (const int stage : {0, 1, 2, 3}) {
    for (const auto gather : {GatherMode::kView, GatherMode::kCopy}) {
      if (stage < 3 && gather == GatherMode::kCopy) continue;
      const std::string name = stage < 3 ? "" : gather == GatherMode::kView ? "_view" : "_copy";
      benchmark::RegisterBenchmark(fmt::format("overlap/host/stage_{}{}_2_ranks", stage, name).c_str(),
                                   [=](benchmark::State& state) { hidden_share(state, stage, gather); })
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMillisecond);
    }
  }
  for (const int units : {100, 1000, 10000}) {
    for (const int ranks : {8, 1024}) {
      benchmark::RegisterBenchmark(fmt::format("plan/host/{}_units_{}_ranks", units, ranks).c_str(),
                                   [=](benchmark::State& state) { planning(state, units, ranks); })
          ->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace aliquot
