// Tests that the engine rejects invalid declarations and calls before training, and remains usable afterwards.
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>

#include "engine/engine.h"
#include "engine/run/tensor_stream.h"
#include "optim/custom_rule.h"
#include "tests/engine/small_model.h"
#include "tests/support/usage_error_message.h"

namespace aliquot {
namespace {

using namespace testing_model;
using test::usage_error_message;

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN(),
                 kInfinity = std::numeric_limits<double>::infinity();

/// An engine on one rank. declare_named() adds a unit with one parameter.
class Refusals : public testing::Test {
 protected:
  void declare_named(const std::string& name, std::vector<int64_t> shape = {3}) {
    engine.add_unit(fmt::format("unit {}", engine.units().size())).add("." + name, std::move(shape), &value, &gradient);
  }
  static void ones(const ParameterSpec&, int64_t, std::span<float> values) { std::ranges::fill(values, 1.0f); }
  void train_a_step() {
    {
      const Pass pass = engine.micro_batch();
      for (Unit& unit : engine.units()) const Scope live = unit.forward();
      for (Unit& unit : reversed(engine.units())) const Scope live = unit.backward();
    }
    EXPECT_FALSE(engine.step().skipped);
  }

  World world = World::from_environment(kHosts);
  // Declared before the engine, whose destructor sets them to null.
  float *value = nullptr, *gradient = nullptr, *other = nullptr, *other_gradient = nullptr;
  Engine engine{world, {}};
};

TEST_F(Refusals, NamesThatNoCheckpointCanHold) {
  const std::vector<std::string> names = {"",
                                          "x/",
                                          "x//y",
                                          ".",
                                          "x/../y",
                                          "a\nb",
                                          "a\xff\xfe",
                                          std::string("a\0b", 3),
                                          std::string(961, 'n'),
                                          std::string(5'000'000, 'n')};
  for (const std::string& name : names) {
    Engine one(world, {});
    one.add_unit("u").add("." + name, {3}, &value, &gradient);
    const std::string message = usage_error_message([&] { one.plan(); });
    EXPECT_EQ(message.substr(0, 10), "parameter ") << message;
    EXPECT_LT(message.size(), 300u);
  }
  declare_named("x");
  declare_named("x/exp_avg");
  EXPECT_EQ(usage_error_message([&] { engine.plan(); }),
            "parameters x/exp_avg and x cannot be in one checkpoint: the part of a name before '/' is an HDF5 group, "
            "so no tensor can have that name");
}

TEST_F(Refusals, EmptyAndTooLargeShapes) {
  const auto error_of = [&](const std::vector<int64_t>& shape) {
    Engine one(world, {});
    Unit& unit = one.add_unit("u");
    std::string sentence = usage_error_message([&] { unit.add("w", shape, &value, &gradient); });
    unit.add("w", {3}, &value, &gradient);  // the rejected call has declared nothing
    EXPECT_NO_THROW(one.plan());
    return sentence;
  };
  EXPECT_EQ(error_of({0}), "u.w has the extent 0 in its shape [0]: expected 1 or more");
  EXPECT_EQ(error_of({4, -1}), "u.w has the extent -1 in its shape [4, -1]: expected 1 or more");
  EXPECT_EQ(error_of({0, int64_t{1} << 60}),
            "u.w has the extent 0 in its shape [0, 1152921504606846976]: expected 1 or more");
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {int64_t{1} << 61}, {int64_t{1} << 30, int64_t{1} << 34}, std::vector<int64_t>(33, 1)})
    EXPECT_EQ(error_of(shape).substr(0, 45), "u.w has too many extents or elements in its s");
}

TEST_F(Refusals, NullPointersAndPointersSharedWithinAUnit) {
  Unit& unit = engine.add_unit("u");
  const auto error_of = [&](PointerSlot values, PointerSlot gradients) {
    return usage_error_message([&] { unit.add("w", {3}, values, gradients); });
  };
  EXPECT_EQ(error_of(nullptr, &gradient),
            "u.w has no pointer to its values: expected the address of one of the model's pointers");
  EXPECT_EQ(error_of(static_cast<float**>(nullptr), &gradient),
            "u.w has no pointer to its values: expected the address of one of the model's pointers");
  EXPECT_EQ(error_of(&value, &value),
            "the values and the gradient of u.w use the same pointer: expected a different pointer for each");
  unit.add("v", {3}, &value, &gradient);
  const std::string shared =
      "u.v and u.w use the same pointer: expected a different pointer for each parameter of a unit";
  EXPECT_EQ(error_of(&value, &other_gradient), shared);
  EXPECT_EQ(error_of(&other, &gradient), shared);
  EXPECT_EQ(error_of(&gradient, &other_gradient), shared);
  unit.add("w", {3}, &other, &other_gradient);
  EXPECT_NO_THROW(engine.materialize(ones));
  EXPECT_NO_THROW(train_a_step());
}

/// Units that are not used together may share a pointer, because only one of them has an open scope at a time. Units of
/// one use may not.
TEST_F(Refusals, PointersSharedByUnitsOfOneUse) {
  for (const bool together : {false, true}) {
    Engine one(world, {});
    for (const char* name : {"a", "b"}) one.add_unit(name).add("w", {3}, &value, &gradient);
    if (together) one.declare_order({{0, 1}});
    const std::string message = usage_error_message([&] { one.materialize(ones); });
    EXPECT_EQ(message,
              together
                  ? "a.w and b.w use the same pointer, but are used together: expected a different pointer for each"
                  : "no error was thrown");
  }
}

template <typename Any>
constexpr bool kAcceptsAnIntegerInAList = requires(Any& engine) {
  engine.forward({0});
};

/// engine.forward({0}) must not compile, because 0 would convert to a null Unit pointer.
TEST_F(Refusals, NullUnitPointers) {
  static_assert(!kAcceptsAnIntegerInAList<Engine>);
  declare_named("w");
  engine.materialize(ones);
  const Pass pass = engine.micro_batch();
  const Unit* none = nullptr;
  EXPECT_EQ(usage_error_message([&] { const Scope live = engine.forward({none}); }),
            "a unit pointer is null: expected the address of one of engine.units()");
}

TEST_F(Refusals, ValidNamesAreAccepted) {
  for (const std::string& name : {std::string("a/b"), std::string("ä → ш"), std::string(960, 'n'), std::string("a.b")})
    declare_named(name);
  declare_named("many", std::vector<int64_t>(32, 1));
  EXPECT_NO_THROW(engine.plan());
}

TEST_F(Refusals, AModelWithTooManyElements) {
  for (int i = 0; i < 30; ++i) declare_named(fmt::format("w{}", i), {int64_t{1} << 58});
  EXPECT_EQ(usage_error_message([&] { engine.plan(); }), "the model has more than 2^58 elements");
}

TEST_F(Refusals, InvalidLearningRatesAndClipNorms) {
  for (const double rate : {kNotANumber, kInfinity, -1.0, 1e40})
    EXPECT_NE(usage_error_message([&] { engine.set_learning_rate(rate); }).find("the learning rate is "),
              std::string::npos);
  EXPECT_NO_THROW(engine.set_learning_rate(0.0));
  for (const double clip : {kNotANumber, kInfinity, -1.0})
    EXPECT_NE(usage_error_message([&] { Engine one(world, {.clip = clip}); }).find("clip is "), std::string::npos);
}

TEST_F(Refusals, ACustomOptimizerWithoutARule) {
  EXPECT_EQ(usage_error_message([&] { Engine one(world, {.optimizer = CustomOptimizer{}}); }),
            "the CustomOptimizer is empty: make it with custom_optimizer()");
}

TEST_F(Refusals, NullFunctions) {
  declare_named("w");
  EXPECT_NE(usage_error_message([&] { engine.materialize({}); }).find("materialize() needs a function"),
            std::string::npos);
  EXPECT_NO_THROW(engine.materialize(ones));
  EXPECT_EQ(usage_error_message([] { World::threads(2, nullptr); }), "a world needs a function for its ranks to run");
  EXPECT_EQ(usage_error_message([] { World::run(2, nullptr); }), "a world needs a function for its ranks to run");
  EXPECT_EQ(usage_error_message([] { World::run(1, nullptr, {.kind = WorldChoice::kMpi}); }),
            "a world needs a function for its ranks to run");
}

/// Regression test: after a failed callback, the engine was treated as materialized and trained on zeros.
TEST_F(Refusals, FailedMaterializeCanBeRepeated) {
  declare_named("w");
  const auto fails = [](const ParameterSpec&, int64_t, std::span<float>) { throw std::runtime_error("no file"); };
  EXPECT_THROW(engine.materialize(fails), std::runtime_error);
  EXPECT_EQ(usage_error_message([&] { (void)engine.micro_batch(); }), "call materialize() before micro_batch()");
  engine.materialize(ones);
  EXPECT_EQ(engine.read("w"), std::vector<float>(3, 1.0f));
  EXPECT_NO_THROW(train_a_step());
}

TEST_F(Refusals, UnitIndicesOutOfRange) {
  declare_named("w");
  engine.materialize(ones);
  const Pass pass = engine.micro_batch();
  for (const UnitId unit : {-1, 1, 99}) {
    EXPECT_EQ(usage_error_message([&] { const Scope live = engine.forward(std::span(&unit, 1)); }),
              fmt::format("invalid unit id {}: expected an id below 1", unit));
    EXPECT_EQ(usage_error_message([&] { engine.skip(std::span(&unit, 1)); }),
              fmt::format("invalid unit id {}: expected an id below 1", unit));
  }
}

TEST_F(Refusals, CallsOutOfOrder) {
  declare_named("w");
  engine.materialize(ones);
  Unit& unit = engine.units().front();
  EXPECT_EQ(usage_error_message([&] { (void)engine.step(); }), "step() was called before micro_batch()");
  EXPECT_EQ(usage_error_message([&] { unit.skip(); }),
            "skip() was called outside of a micro-batch: call micro_batch() first");
  {
    const Pass pass = engine.micro_batch();
    {
      const Scope live = unit.forward();
      EXPECT_EQ(usage_error_message([&] { unit.skip(); }), "the scope of unit unit 0 is still open: close it first");
    }
    EXPECT_EQ(usage_error_message([&] { (void)engine.step(); }),
              "step() was called, but the declared order expects backward of unit 0");
    const Scope live = unit.backward();
  }
  EXPECT_NO_THROW(engine.step());
}

TEST_F(Refusals, AUnitTwiceInOneCall) {
  declare_named("w");
  engine.materialize(ones);
  const UnitId twice[] = {0, 0};
  const Pass pass = engine.micro_batch();
  EXPECT_EQ(usage_error_message([&] { const Scope live = engine.forward(std::span(twice)); }),
            "one call of forward names unit unit 0 twice: expected each unit at most once");
}

TEST_F(Refusals, StepBeforeTheLastMicroBatch) {
  Engine two(world, {.accumulate = 2});
  two.add_unit("u").add("w", {3}, &other, &other_gradient);
  two.materialize(ones);
  {
    const Pass pass = two.micro_batch();
    { const Scope live = two.units().front().forward(); }
    const Scope live = two.units().front().backward();
  }
  EXPECT_EQ(usage_error_message([&] { (void)two.step(); }),
            "EngineOptions::accumulate is 2, but step() was called before micro-batch 1 (counted from 0): call "
            "micro_batch() and run it first");
}

TEST_F(Refusals, MaterializeTwice) {
  declare_named("w");
  engine.materialize(ones);
  EXPECT_EQ(usage_error_message([&] { engine.materialize(ones); }),
            "materialize() was called twice: expected one call for each engine");
}

TEST_F(Refusals, InvalidDeadlines) {
  for (const double seconds : {0.0, -1.0, kNotANumber}) {
    EXPECT_NE(usage_error_message([&] {
                World::threads(2, [](World&) {}, {.timeout_seconds = seconds});
              }).find("timeout_seconds is "),
              std::string::npos);
    EXPECT_NE(
        usage_error_message([&] { World::from_environment({.timeout_seconds = seconds}); }).find("timeout_seconds is "),
        std::string::npos);
  }
}

/// Regression test: a deadline beyond the range of the clock expired immediately.
TEST_F(Refusals, HugeAndInfiniteDeadlinesAreAccepted) {
  for (const double seconds : {1e10, 1e300, kInfinity}) {
    const auto all_reduce = [](World& ranks) {
      double one = 1;
      if (ranks.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ranks.sum(std::span(&one, 1));
      EXPECT_EQ(one, 2);
    };
    EXPECT_NO_THROW(World::threads(2, all_reduce, {.device = DeviceChoice::kHost, .timeout_seconds = seconds}));
  }
}

// Collective reads ----------------------------------------------------------------------------------------------------

TEST(Reading, DifferentNamesThrowOnAllRanks) {
  World::threads(
      3,
      [](World& world) {
        EngineWithModel setup(world, {});
        const std::string message =
            usage_error_message([&] { setup.engine.read(world.rank() == 1 ? "layer.1.weight" : "layer.0.weight"); });
        EXPECT_EQ(message,
                  "ranks make different calls: rank 1 is reading layer.1.weight, but rank 0 is reading layer.0.weight");
        EXPECT_NO_THROW(setup.engine.read("layer.0.weight"));
      },
      kHosts);
}

TEST(Reading, UnknownNamesGetASuggestion) {
  World::threads(
      1,
      [](World& world) {
        EngineWithModel setup(world, {});
        EXPECT_EQ(usage_error_message([&] {
                    setup.engine.read("layer.0.weigth");
                  }).find("read(): there is no parameter layer.0.weigth. Did you mean layer.0.weight"),
                  0u);
        EXPECT_EQ(usage_error_message([&] { setup.engine.read("no such parameter at all"); }),
                  "read(): there is no parameter no such parameter at all: expected the name of a declared parameter");
      },
      kHosts);
}

/// Returns a tensor that consists of runs of five elements, which the ranks own in turn. Each rank also has a piece
/// that covers the whole tensor and is marked as a copy. This piece must not be read.
StateTensor interleaved_tensor(std::vector<float>& values, int rank, int rank_count) {
  constexpr int64_t kRun = 5;
  StateTensor tensor;
  tensor.path = "t";
  tensor.shape = {std::ssize(values)};
  const auto at = [&](int64_t element) { return reinterpret_cast<std::byte*>(values.data() + element); };
  for (int64_t first = rank * kRun; first < std::ssize(values); first += rank_count * kRun)
    tensor.pieces.push_back({first, std::min(kRun, std::ssize(values) - first), at(first)});
  tensor.pieces.push_back({0, std::ssize(values), at(0), true});
  return tensor;
}

TEST(Reading, StreamsEveryElementOnceInOrderForAnyStagingSize) {
  for (const int ranks : {1, 2, 3}) {
    World::threads(
        ranks,
        [](World& world) {
          Ledger& ledger = world.device().ledger();
          for (const int64_t count : {0, 1, 64, 103}) {
            std::vector<float> values(static_cast<std::size_t>(count));
            std::iota(values.begin(), values.end(), 1.0f);
            for (const int64_t staging_bytes : {4 * kStreamCopies, 28 * kStreamCopies, int64_t{1} << 20}) {
              TensorStream stream(world.communicator(), ledger, staging_bytes);
              EXPECT_EQ(ledger.current()[static_cast<std::size_t>(Category::kStaging)], staging_bytes);
              std::vector<float> found;
              stream.run("testing", interleaved_tensor(values, world.rank(), world.rank_count()),
                         [&](int64_t first, std::span<const std::byte> elements) {
                           EXPECT_EQ(first, std::ssize(found));
                           EXPECT_LE(std::ssize(elements), staging_bytes / kStreamCopies);
                           const auto* begin = reinterpret_cast<const float*>(elements.data());
                           found.insert(found.end(), begin, begin + elements.size() / sizeof(float));
                         });
              EXPECT_TRUE(found == values) << count << " elements, staging " << staging_bytes;
            }
          }
        },
        kHosts);
  }
}

/// read() and set_trainable() process a tensor of 6 MiB in several parts.
TEST(Reading, ReturnsLargeTensorsInFull) {
  World::threads(
      2,
      [](World& world) {
        float *value = nullptr, *gradient = nullptr;
        Engine engine(world, {});
        engine.add_unit("u").add("w", {3, 524'289}, &value, &gradient);
        const auto number = [](const ParameterSpec&, int64_t offset, std::span<float> values) {
          std::iota(values.begin(), values.end(), static_cast<float>(offset));
        };
        engine.materialize(number);
        std::vector<float> expected(3 * 524'289);
        std::iota(expected.begin(), expected.end(), 0.0f);
        EXPECT_TRUE(engine.read("u.w") == expected);
        const Schedule& schedule = engine.plan().schedule;
        EXPECT_EQ(world.device().ledger().in_use_peak_bytes(), persistent_bytes(schedule) + schedule.stream_bytes);
        engine.set_trainable("u", false);
        EXPECT_TRUE(engine.read("u.w") == expected);
      },
      kHosts);
}

}  // namespace
}  // namespace aliquot
