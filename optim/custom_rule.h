#pragma once
// Custom update rules. A custom rule is a struct as described in optim/rule.h that also names its states:
//
//   struct Signum {                                             // moves along the sign of the momentum
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
// Custom rules have all features of built-in rules. One pass over memory unscales and clips the gradients, updates the
// weights and writes the working copy. All kinds of masters, moments in fp32 or bf16, and any sharding are supported.
// Checkpoints contain the states under their names.
//
// The file that includes this header compiles the loops for each instruction set, and one version is selected at run
// time. All versions compute the same bits if the file is compiled with -ffp-contract=off and without -march or
// -ffast-math. Also use -fno-math-errno and -fno-trapping-math. The compiler can then vectorize loops with square roots
// or conditions, which makes them several times faster. The last two options do not change results. In CMake,
// aliquot_rule_sources(FILE) sets all three options.
//
// For GPUs, call custom_cuda<Rule>() of <aliquot/rule_cuda.h> in a .cu file, and pass its result to custom_optimizer().

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

/// What custom_optimizer() requires of R: a trivially copyable struct of constants with the functions of a rule.
template <typename R>
concept UpdateRule = std::is_trivially_copyable_v<R> && sizeof(R) <= kMaxRuleBytes &&
                     alignof(R) <= alignof(double) && R::kStateCount >= 0 &&
                     R::kStateCount <= kMaxStates&& R::kStateNames.size() == R::kStateCount&& requires(const R rule,
                                                                                                       float* state) {
  { rule.at(1.0f, 1.0f) } -> std::same_as<R>;
  { rule.update(0.0f, 0.0f, state) } -> std::same_as<float>;
};

namespace {

/// The loop compiled for a wider instruction set. The target attribute also applies to always-inlined functions that
/// the loop calls.
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

/// Creates an optimizer. `name` appears in logs and error messages. `lr` is the learning rate before a schedule changes
/// it. `rule_of_step(lr, step)` returns the rule of a step, as rule_at() does for built-in optimizers. It is called
/// once per step, on the thread that enqueues the step. `cuda` is the result of custom_cuda<R>(), or null for a rule
/// that supports only hosts. Throws UsageError if `name` or `rule_of_step` is empty, if `name` is the name of a
/// built-in optimizer, or if two states have the same name.
template <UpdateRule R>
static CustomOptimizer custom_optimizer(std::string name, double lr,
                                        std::function<R(double lr, int64_t step)> rule_of_step,
                                        CustomCuda cuda = nullptr) {
  if (!rule_of_step)
    throw UsageError(name + ": rule_of_step is empty: expected a function that returns the rule of a step");
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
