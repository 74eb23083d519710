#pragma once
// A rule of the user's own. It is a struct as optim/rule.h describes one, with the names of its states:
//
//   struct Signum {                                             // sign of a momentum
//     static constexpr int kStateCount = 1;
//     static constexpr std::array<std::string_view, kStateCount> kStateNames = {"momentum"};
//     float lr, beta;
//     Signum at(float lr_scale, float) const { return {lr * lr_scale, beta}; }
//     ALIQUOT_HOST_DEVICE float update(float weight, float gradient, float* state) const {
//       state[0] = beta * state[0] + (1.0f - beta) * gradient;
//       return weight - (state[0] > 0.0f ? lr : (state[0] < 0.0f ? -lr : 0.0f));
//     }
//   };
//   Optimizer mine = custom_optimizer<Signum>("signum", 1e-4, [](double lr, int64_t) {
//     return Signum{static_cast<float>(lr), 0.9f};
//   });
//
// It then has what the built-in rules have: one pass with unscaling, clipping and the working copy; every form of master;
// moments in fp32 or bf16; any cut into shards; its states in checkpoints under their names. The loops are compiled where
// this header is included, for each instruction set, and chosen when the program runs. They give the same bits on all
// if the file is compiled with -ffp-contract=off and without -march and -ffast-math. Square roots and choices vectorise, and the loop then runs at the speed of memory and not several times
// slower, with -fno-math-errno and -fno-trapping-math, which change no value: aliquot_rule_sources(FILE) in CMake.
// For GPUs, also pass custom_cuda<Rule>() of <aliquot/rule_cuda.h>, called in a .cu file.

#include <array>
#include <concepts>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/system/error.h"
#include "optim/custom_loops.h"
#include "optim/update/update_loop.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// What custom_optimizer() takes: constants of one step that may be copied as bytes, and its functions.
template <typename R>
concept UpdateRule = std::is_trivially_copyable_v<R> && sizeof(R) <= kMaxRuleBytes &&
                     alignof(R) <= alignof(double) && R::kStateCount >= 0 &&
                     R::kStateCount <= kMaxStates&& R::kStateNames.size() == R::kStateCount&& requires(const R rule,
                                                                                                       float* state) {
  { rule.at(1.0f, 1.0f) } -> std::same_as<R>;
  { rule.update(0.0f, 0.0f, state) } -> std::same_as<float>;
};

namespace {

/// The loop compiled for a wider instruction set: what is always inlined into it becomes part of it.
struct Avx2Entry {
  using Blocks = PlainBlocks;
  template <typename R, typename Gradient, typename Weights, typename States>
#if defined(__x86_64__)
  [[gnu::target("avx2")]]
#endif
  static void
  run(const void* rule, const UpdateRun& run) {
    run_all<Blocks, R, Gradient, Weights, States>(rule, run);
  }
};
struct Avx512Entry {
  using Blocks = PlainBlocks;
  template <typename R, typename Gradient, typename Weights, typename States>
#if defined(__x86_64__)
  [[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")]]
#endif
  static void
  run(const void* rule, const UpdateRun& run) {
    run_all<Blocks, R, Gradient, Weights, States>(rule, run);
  }
};

template <UpdateRule R>
struct LoopsOf {
  static const R& rule(const void* constants) { return *static_cast<const R*>(constants); }

  static const RunsOfRule& host(Isa isa) {
    static constexpr RunsOfRule kRunsByIsa[] = {runs_of_rule<PlainEntry<>, R>(), runs_of_rule<Avx2Entry, R>(),
                                                runs_of_rule<Avx512Entry, R>()};
    return kRunsByIsa[static_cast<int>(isa)];
  }
  static void at(void* to, const void* from, float lr_scale, float decay_scale) {
    new (to) R(rule(from).at(lr_scale, decay_scale));
  }
  static float update(const void* constants, float weight, float gradient, float* state) {
    return rule(constants).update(weight, gradient, state);
  }
  static constexpr CustomLoops kTable{R::kStateCount, host, at, update};
};

}  // namespace

/// An optimizer of that name, for flags, logs and errors. `lr`: its rate before any schedule. `rule_of_step(lr, step)`
/// gives the rule of a step as rule_at() does for built-in ones; it is called once a step, on the thread that enqueues
/// it. `cuda`: from custom_cuda<R>(), or null, and the rule is for hosts alone.
/// Throws UsageError when the name is empty or a built-in one's, two states share a name, or there is no rule_of_step.
template <UpdateRule R>
static CustomOptimizer custom_optimizer(std::string name, double lr,
                                        std::function<R(double lr, int64_t step)> rule_of_step,
                                        CustomCuda cuda = nullptr) {
  if (!rule_of_step) throw UsageError(name + ": there is no function that gives the rule of a step");
  CustomDescription description{.name = std::move(name), .lr = lr, .state_names = {}, .rule_at = nullptr};
  description.state_names.assign(R::kStateNames.begin(), R::kStateNames.end());
  description.rule_at = [of_step = std::move(rule_of_step), cuda](double rate, int64_t step) {
    CustomRule rule{.loops = &LoopsOf<R>::kTable, .cuda = cuda, .constants = {}};
    new (rule.constants) R(of_step(rate, step));
    return rule;
  };
  return described(std::move(description));
}

}  // namespace aliquot
#pragma GCC visibility pop
