// The complete optimizer step on the host. Compares each rule with a lower bound, the floor, which reads and writes the
// same memory. Compares AdamW also with a step in separate passes and with PyTorch.

#include <benchmark/benchmark.h>
#include <cstdlib>
#include <memory>
#include <vector>

#include "bench/optimizer_floor.h"
#include "bench/paired.h"
#include "bench/torch_process.h"
#include "kernels/formats/dtype.h"
#include "kernels/formats/float16.h"
#include "kernels/formats/split_master.h"
#include "kernels/system/thread_pool.h"
#include "optim/custom_rule.h"
#include "optim/muon/muon.h"
#include "optim/update/update_host.h"

namespace aliquot {
namespace {

constexpr int64_t kCount = int64_t{64} << 20;
constexpr int kThreads = 2;
constexpr int kRounds = 15;
constexpr int kMaxPlainStates = 2;

template <typename Body>
void on_threads(const Body& body) {
  static ThreadPool pool(kThreads);
  pool.for_ranges(kCount, 16 * kBlockElements, body);
}

/// All arrays that a step may use. Each starts at a different offset within 2 MiB, because streams with equal offsets
/// would use the same cache sets and evict each other.
class Arrays {
 public:
  Arrays() {
    constexpr int64_t kStagger = 2 * 4096 + 5 * 64, kPage = 2 << 20;
    int64_t total = 0;
    int index = 0;
    const auto place = [&](int64_t bytes) {
      const int64_t at = total + kStagger * index++;
      total = (at + bytes + kPage - 1) / kPage * kPage;
      return at;
    };
    int64_t at[7];
    for (int i = 0; i < 7; ++i) at[i] = place(kCount * (i < 4 ? 4 : 2));
    base_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, static_cast<size_t>(total))));
    for (int i = 0; i < 4; ++i) fp32[i] = reinterpret_cast<float*>(base_.get() + at[i]);
    for (int i = 0; i < 3; ++i) half[i] = reinterpret_cast<uint16_t*>(base_.get() + at[4 + i]);
    // Quantized moments (codes and scales) use the memory of the fp32 moments.
    codes[0] = reinterpret_cast<uint8_t*>(fp32[1]), codes[1] = reinterpret_cast<uint8_t*>(fp32[2]);
    for (int i = 0; i < 2; ++i) scales[i] = reinterpret_cast<float*>(codes[i] + kCount) + 4096;
    fill();
  }

  float* fp32[4];  // master, states 0 and 1, gradient
  uint8_t* codes[2];
  float* scales[2];
  uint16_t* half[3];  // gradient; bf16 copy or high half of a split master; low half of a split master

 private:
  void fill() {
    on_threads([this](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto noise = static_cast<uint32_t>(i) * 2654435761u;
        const float value = static_cast<float>(static_cast<int32_t>(noise)) * 0x1p-32f;
        fp32[0][i] = value, fp32[1][i] = 0.0f, fp32[2][i] = 0.0f, fp32[3][i] = value * 0.01f;
        half[0][i] = half[1][i] = master_high(value), half[2][i] = 0;
      }
    });
  }

  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> base_;
};

Arrays& arrays() {
  static Arrays arrays;
  return arrays;
}

/// An optimizer step over kCount elements. Each segment is one tensor of 768 * 768 elements, a matrix of GPT-2 124M.
class Step {
 public:
  Step(const Optimizer& optimizer, DType gradient_dtype, bool split, bool copy) {
    constexpr int64_t kTensor = 768 * 768;
    for (int64_t offset = 0; offset < kCount; offset += kTensor) {
      segments_.push_back(
          {.offset = offset, .count = std::min(kTensor, kCount - offset), .global_offset = 0, .parameter = 0});
    }
    Arrays& a = arrays();
    args_.gradient_dtype = gradient_dtype;
    args_.gradient = gradient_dtype == DType::kFloat32 ? static_cast<void*>(a.fp32[3]) : a.half[0];
    if (split) {
      args_.master = {.high = a.half[1], .low = reinterpret_cast<int16_t*>(a.half[2])};
    } else {
      args_.master = {.whole = a.fp32[0], .copy = copy ? a.half[1] : nullptr};
    }
    args_.moments = moment_dtype(optimizer), args_.rounding = rounding(optimizer);
    args_.states[0] = a.fp32[1], args_.states[1] = a.fp32[2];
    if (args_.moments == DType::kUInt8) {
      args_.states[0] = a.codes[0], args_.states[1] = a.scales[0];
      args_.states[2] = a.codes[1], args_.states[3] = a.scales[1];
    }
    args_.segments = segments_.data(), args_.segment_count = static_cast<int64_t>(segments_.size());
    args_.count = kCount;
    step_ = {.rule = rule_at(optimizer, 1e-4, 10), .gradient_factor = 0.9f};
  }

  void use(const Rule& rule) { step_.rule = rule; }

  void run() const {
    on_threads([this](int64_t begin, int64_t end) { update_range(best_isa(), args_, step_, begin, end); });
  }

 private:
  std::vector<Segment> segments_;
  UpdateArgs args_;
  UpdateStep step_;
};

struct Case {
  const char* name;
  Optimizer optimizer;
  bool split;
  int bytes;  // minimum memory traffic per parameter: bytes read plus bytes written
};

/// Sets the counters of bytes and nanoseconds per parameter. Call after PairedBenchmark has run.
void report(benchmark::State& state, int bytes) {
  state.counters["bytes_per_parameter"] = bytes;
  state.counters["ns_per_parameter"] = bytes / state.counters["GB/s"];
}

void whole_step(benchmark::State& state, const Case& of) {
  const Step step(of.optimizer, DType::kBFloat16, of.split, true);
  Arrays& a = arrays();
  const int states = static_cast<int>(state_specs(of.optimizer).size());
  FloorStreams floor;
  floor.gradient = a.half[0];
  floor.fp32_count = states + (of.split ? 0 : 1);
  if (states > kMaxPlainStates) {  // AdamW8bit: its states are 8-bit codes and their scales
    floor.fp32_count = 1;
    for (int k = 0; k < 2; ++k) floor.bytes[k] = a.codes[k];
  }
  for (int k = 0; k < floor.fp32_count; ++k) floor.fp32[k] = a.fp32[of.split ? k + 1 : k];
  if (of.split) {
    floor.high = a.half[1], floor.low = reinterpret_cast<int16_t*>(a.half[2]);
  } else {
    floor.copy = a.half[1];
  }
  const auto reference = [&] { on_threads([&](int64_t begin, int64_t end) { run_floor(floor, begin, end); }); };
  PairedBenchmark(state, [&] { step.run(); }).compare_with("floor", reference).run(of.bytes * kCount);
  report(state, of.bytes);
}

/// The first pass of Muon: updates the momentum and prepares the matrix to be orthogonalized.
void muon_blend(benchmark::State& state) {
  Step step(Sgd{}, DType::kBFloat16, false, false);
  step.use(muon_blend_rule(Muon{}));
  const FloorStreams floor{.gradient = arrays().half[0], .fp32 = {arrays().fp32[0], arrays().fp32[1]}, .fp32_count = 2};
  const auto reference = [&] { on_threads([&](int64_t begin, int64_t end) { run_floor(floor, begin, end); }); };
  PairedBenchmark(state, [&] { step.run(); }).compare_with("floor", reference).run(18 * kCount);
  report(state, 18);
}

/// AdamW as a user-defined rule.
struct OwnAdamW : AdamWRule {
  static constexpr std::array<std::string_view, kStateCount> kStateNames = {"mean", "square"};
  ALIQUOT_HOST_DEVICE OwnAdamW at(float lr_scale, float decay_scale) const {
    return {AdamWRule::at(lr_scale, decay_scale)};
  }
};

Optimizer own_adamw() {
  return custom_optimizer<OwnAdamW>("own-adamw", 1e-4, [](double lr, int64_t step) {
    return OwnAdamW{std::get<AdamWRule>(rule_at(AdamW{}, lr, step))};
  });
}

/// The step as other frameworks implement it: norm, clip, Adam and cast are separate passes over an fp32 gradient.
void separate_passes(benchmark::State& state) {
  const Step fused(AdamW{}, DType::kBFloat16, false, true), adam(AdamW{}, DType::kFloat32, false, false);
  const HostLoops& loops = host_loops(best_isa());
  Arrays& a = arrays();
  std::vector<double> squares(kCount / kBlockElements);
  const auto passes = [&] {
    on_threads([&](int64_t begin, int64_t end) {
      loops.block_squares(squares.data() + begin / kBlockElements, a.fp32[3] + begin, end - begin);
    });
    on_threads([&](int64_t begin, int64_t end) { loops.scale(a.fp32[3] + begin, 0.999f, end - begin); });
    adam.run();
    on_threads(
        [&](int64_t begin, int64_t end) { loops.split(a.half[1] + begin, nullptr, a.fp32[0] + begin, end - begin); });
  };
  PairedBenchmark(state, passes).compare_with("whole_step", [&] { fused.run(); }).run(46 * kCount);
  report(state, 46);
}

/// Compares AdamW in PyTorch, in a separate process with the same number of threads, with our AdamW.
void by_torch(benchmark::State& state, const char* form) {
  const Step ours(AdamW{}, DType::kBFloat16, false, true);
  TorchProcess torch({ALIQUOT_BENCH_OPTIMIZER_TORCH, std::to_string(kCount), std::to_string(kThreads), form});
  PairedBenchmark(state, [&] { torch.run(); }).compare_with("whole_step", [&] { ours.run(); }).run(28 * kCount);
  report(state, 28);
}

const Case kCases[] = {
    {"adamw/host/whole_step", AdamW{}, false, 28},
    {"adamw/host/whole_step_split_master", AdamW{}, true, 26},
    {"adam/host/whole_step", Adam{}, false, 28},
    {"lion/host/whole_step", Lion{}, false, 20},
    {"sgd_momentum/host/whole_step", Sgd{}, false, 20},
    {"sgd/host/whole_step", Sgd{.momentum = 0.0f}, false, 12},
    {"adamw8bit/host/whole_step", AdamW8bit{}, false, 16},
    {"custom_adamw/host/whole_step", own_adamw(), false, 28},
    {"adamw8bit/host/whole_step_stochastic", AdamW8bit{.rounding = Rounding::kStochastic}, false, 16},
};

[[maybe_unused]] const bool kRegistered = [] {
  for (const Case& of : kCases) {
    benchmark::RegisterBenchmark(of.name, [&of](benchmark::State& state) { whole_step(state, of); })
        ->UseManualTime()
        ->Iterations(kRounds)
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RegisterBenchmark("muon/host/blend", muon_blend)
      ->UseManualTime()
      ->Iterations(kRounds)
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("adamw/host/separate_passes", separate_passes)
      ->UseManualTime()
      ->Iterations(kRounds)
      ->Unit(benchmark::kMillisecond);
  for (const char* form : {"fused", "foreach"}) {
    if (!TorchProcess::available()) continue;
    benchmark::RegisterBenchmark((std::string("adamw/torch/") + form).c_str(),
                                 [form](benchmark::State& state) { by_torch(state, form); })
        ->UseManualTime()
        ->Iterations(kRounds)
        ->Unit(benchmark::kMillisecond);
  }
  return true;
}();

}  // namespace
}  // namespace aliquot
