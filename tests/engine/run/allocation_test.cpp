// Tests that the engine allocates nothing after the first step. This program replaces operator new to count
// allocations.
#include <array>
#include <atomic>
#include <cstdlib>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <new>

#include "engine/engine.h"

namespace {
std::atomic<bool> counting = false;
std::atomic<int64_t> allocation_count = 0;
}  // namespace

// AddressSanitizer has its own versions of these operators and reports memory that one version allocates and another
// frees.
#ifndef __SANITIZE_ADDRESS__
// These operators must not be inlined. If GCC inlines only one of a pair, it warns that malloc and delete do not match.
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (counting) ++allocation_count;
  if (void* data = std::malloc(size > 0 ? size : 1)) return data;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  if (counting) ++allocation_count;
  const auto align = static_cast<std::size_t>(alignment);
  if (void* data = std::aligned_alloc(align, (size + align - 1) / align * align)) return data;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::size_t, std::align_val_t) noexcept { std::free(data); }
#endif

namespace aliquot {
namespace {

constexpr int kUnits = 6;
constexpr int64_t kElements = 3000;

/// Adds one to every gradient, or sets it to one if it is bf16. Makes no allocations.
struct Model {
  std::array<void*, kUnits> value = {}, gradient = {};
  DType gradients;

  void backward(int unit) {
    if (gradients == DType::kFloat32) {
      for (int64_t i = 0; i < kElements; ++i) static_cast<float*>(gradient[unit])[i] += 1.0f;
    } else {
      for (int64_t i = 0; i < kElements; ++i) static_cast<uint16_t*>(gradient[unit])[i] = 0x3F80;
    }
  }
};

void take_step(Engine& engine, Model& model, int accumulate) {
  for (int m = 0; m < accumulate; ++m) {
    engine.micro_batch();
    for (Unit& unit : engine.units()) auto live = unit.forward();
    for (Unit& unit : reversed(engine.units())) {
      auto live = unit.backward();
      model.backward(unit.index());
    }
  }
  EXPECT_FALSE(engine.step().skipped);
}

void evaluate(Engine& engine) {
  for (Unit& unit : engine.units()) auto live = unit.evaluate();
}

int64_t allocations_after_the_first_step(const EngineOptions& options, bool evaluates) {
  int64_t count = 0;
  World::threads(2,
                 [&](World& world) {
                   Model model{.gradients = options.precision.gradients};
                   Engine engine(world, options);
                   for (int u = 0; u < kUnits; ++u)
                     engine.add_unit(fmt::format("u{}", u)).add("w", {kElements}, &model.value[u], &model.gradient[u]);
                   engine.declare_activations({std::vector<UseActivations>(kUnits, {64, 128, 32, true}), 64},
                                              [](const UseMemory&) {});
                   engine.materialize([](const auto&, int64_t, std::span<float> v) { std::ranges::fill(v, 0.5f); });
                   take_step(engine, model, options.accumulate);
                   if (evaluates) evaluate(engine);
                   world.communicator().gather_objects("first step done");
                   if (world.rank() == 0) {
                     allocation_count = 0;
                     counting = true;
                   }
                   const auto stream = world.device().make_stream(Lane::kCompute);
                   world.communicator().barrier(*stream, {"counting"});
                   const int64_t before = allocation_count;
                   for (int step = 0; step < 5; ++step) take_step(engine, model, options.accumulate);
                   if (evaluates) evaluate(engine);
                   world.communicator().barrier(*stream, {"counted"});
                   counting = false;
                   if (world.rank() == 0) count = allocation_count - before;
                 },
                 {.device = DeviceChoice::kHost, .timeout_seconds = 60});
  return count;
}

class Allocation : public testing::Test {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "AddressSanitizer replaces the operators that this test counts";
#endif
  }
};

TEST_F(Allocation, DoesNotHappenAfterTheFirstStep) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const auto gather : {GatherMode::kCopy, GatherMode::kView}) {
      for (const int accumulate : {1, 4}) {
        for (const bool reproducible : {false, true}) {
          for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
            if (stage < 3 && gather == GatherMode::kView) continue;
            EngineOptions options = {.zero_stage = stage, .accumulate = accumulate, .reproducible = reproducible};
            if (stage == 3) options.gather = gather;
            options.recompute = accumulate == 4 ? 3 : 0;
            options.precision.compute = compute;
            if (compute == DType::kBFloat16) options.precision.reduce = DType::kBFloat16;
            EXPECT_EQ(allocations_after_the_first_step(options, false), 0)
                << "ZeRO stage " << stage << ", accumulate " << accumulate << ", reproducible " << reproducible;
          }
        }
      }
    }
  }
}

TEST_F(Allocation, DoesNotHappenWithUpdatesInBackward) {
  for (const int stage : {0, 1, 2, 3}) {
    EXPECT_EQ(allocations_after_the_first_step({.zero_stage = stage, .update_in_backward = true, .clip = 0}, false), 0);
  }
}

/// At a switch between training and evaluation, ranks exchange small messages, which requires a few allocations.
TEST_F(Allocation, IsRareForAnEvaluation) {
  const int64_t count = allocations_after_the_first_step({.zero_stage = 3, .gather = GatherMode::kCopy}, true);
  EXPECT_GT(count, 0) << "the counter should count allocations of the engine";
  EXPECT_LE(count, 60);
}

TEST_F(Allocation, IsCounted) {
  counting = true;
  const int64_t before = allocation_count;
  void* seen = ::operator new(100);
  counting = false;
  EXPECT_EQ(allocation_count - before, 1);
  ::operator delete(seen);
}

}  // namespace
}  // namespace aliquot
