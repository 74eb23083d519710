// Tests of the checking mode: invalid accesses to tensors fault, and the process prints a message.
#include <csignal>
#include <functional>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/run/memory/aliased_pages.h"
#include "tests/engine/run/checked_pair.h"

namespace aliquot {
namespace {

using namespace testing_model;

TEST(Check, MemoryThatCannotBeAliasedThrows) {
  constexpr int64_t kBytes = 4 * kPlacePageBytes;
  void* own = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto* at = static_cast<std::byte*>(own);
  TensorRanges names;
  names.add("parameter w", 0, kBytes);
  EXPECT_THROW(AliasedPages(at, kBytes, names), UnavailableError);
  make_aliasable(at, kBytes);
  make_aliasable(at, kBytes);  // no effect: the memory is already aliasable
  at[5] = std::byte{7};
  {
    AliasedPages pages(at, kBytes, names);
    pages.protect(AliasedPages::Protection::kReadWrite);
    EXPECT_EQ(pages.data()[5], std::byte{7});
    pages.data()[6] = std::byte{8};
  }
  EXPECT_EQ(at[6], std::byte{8});
  munmap(own, kBytes);
}

void touch(const float* at) { (void)*static_cast<const volatile float*>(at); }
void write(float* at) { *static_cast<volatile float*>(at) = 0; }

void expect_fault(const std::function<void(Pair&)>& wrong, const std::string& sentence) {
  for (const EngineOptions& options : every_stage(true)) {
    EXPECT_EXIT(
        {
          // The handler of a sanitizer would call exit(), and the test expects that the signal ends the process.
          std::signal(SIGSEGV, SIG_DFL);
          World world = World::from_environment(kHosts);
          Pair pair(world, options);
          wrong(pair);
          _exit(0);
        },
        testing::KilledBySignal(SIGSEGV), sentence)
        << title(options);
  }
}

TEST(CheckDeathTest, ParametersFaultAfterTheirScope) {
  expect_fault(
      [](Pair& pair) {
        pair.engine.micro_batch();
        const float* stale = nullptr;
        {
          const Scope live = pair.engine.units()[0].forward();
          stale = pair.value[0];
        }
        touch(stale + 3);
      },
      "^aliquot: parameter a.w was accessed outside of an open scope: access it only");
}

TEST(CheckDeathTest, GradientsFaultAfterTheirScope) {
  expect_fault(
      [](Pair& pair) {
        pair.forward();
        float* stale = nullptr;
        {
          const Scope live = pair.engine.units()[1].backward();
          stale = pair.gradient[2];
          write(stale);
        }
        write(stale);
      },
      "^aliquot: the gradient of b.bias was accessed outside of an open scope");
}

TEST(CheckDeathTest, WritesToParametersFault) {
  expect_fault(
      [](Pair& pair) {
        pair.engine.micro_batch();
        const Scope live = pair.engine.units()[0].forward();
        write(pair.value[0] + 3);
      },
      "^aliquot: parameter a.w was written: a model must not write its parameters");
  expect_fault(
      [](Pair& pair) {
        pair.forward();
        const Scope live = pair.engine.units()[1].backward();
        write(pair.value[2]);
      },
      "^aliquot: parameter b.bias was written: a model must not write its parameters");
  expect_fault(
      [](Pair& pair) {
        const Scope live = pair.engine.units()[0].evaluate();
        write(pair.value[0]);
      },
      "^aliquot: parameter a.w was written: a model must not write its parameters");
}

TEST(CheckDeathTest, FaultFarBeyondATensorNamesTheTensor) {
  expect_fault(
      [](Pair& pair) {
        pair.forward();
        const Scope live = pair.engine.units()[1].backward();
        write(pair.gradient[2] + 64 + 100'000);
      },
      "^aliquot: the gradient of b.bias was accessed 400000 bytes beyond its end: check the index");
}

TEST(CheckDeathTest, ActivationsFaultAfterTheirScope) {
  expect_fault(
      [](Pair& pair) {
        pair.engine.micro_batch();
        float* scratch = nullptr;
        {
          const Scope live = pair.engine.units()[0].forward();
          scratch = static_cast<float*>(live.memory().scratch);
          write(scratch);
        }
        write(scratch);
      },
      "^aliquot: scratch memory of a was accessed outside of an open scope");
}

/// Code that computes a loss may read saved activations and outputs between scopes.
TEST(Check, ActivationsAreReadableBetweenScopes) {
  World world = World::from_environment(kHosts);
  Pair pair(world, {.check = true});
  pair.engine.micro_batch();
  float* output = nullptr;
  for (Unit& unit : pair.engine.units()) {
    const Scope live = unit.forward();
    output = static_cast<float*>(live.memory().output);
    *output = 5;
  }
  EXPECT_EQ(*output, 5);
}

}  // namespace
}  // namespace aliquot
