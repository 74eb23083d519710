// What an engine does not take, and says so before anything is trained with it; and what a refusal leaves.
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>

#include "engine/engine.h"
#include "engine/run/tensor_stream.h"
#include "optim/custom_rule.h"
#include "tests/engine/small_model.h"
#include "tests/support/refusal.h"

namespace aliquot {
namespace {

using namespace testing_model;
using test::refusal;

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN(),
                 kInfinity = std::numeric_limits<double>::infinity();

/// An engine of one parameter, of one rank.
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
  // Before the engine, which sets them to null when it is destroyed.
  float *value = nullptr, *gradient = nullptr, *other = nullptr, *other_gradient = nullptr;
  Engine engine{world, {}};
};

TEST_F(Refusals, NamesAndShapesThatNoCheckpointHolds) {
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
    const std::string said = refusal([&] { one.plan(); });
    EXPECT_EQ(said.substr(0, 33), "no checkpoint can hold parameter ") << said;
    EXPECT_LT(said.size(), 300u);
  }
  declare_named("x");
  declare_named("x/exp_avg");
  EXPECT_EQ(refusal([&] { engine.plan(); }),
            "no checkpoint can hold parameter x/exp_avg beside x: what comes before a / is a group there");
}

TEST_F(Refusals, ShapesOfNothingAndOfTooMuch) {
  const auto said = [&](const std::vector<int64_t>& shape) {
    Engine one(world, {});
    Unit& unit = one.add_unit("u");
    std::string sentence = refusal([&] { unit.add("w", shape, &value, &gradient); });
    unit.add("w", {3}, &value, &gradient);  // nothing was declared
    EXPECT_NO_THROW(one.plan());
    return sentence;
  };
  EXPECT_EQ(said({0}), "u.w has the extent 0 in its shape [0]: expected 1 or more");
  EXPECT_EQ(said({4, -1}), "u.w has the extent -1 in its shape [4, -1]: expected 1 or more");
  EXPECT_EQ(said({0, int64_t{1} << 60}),
            "u.w has the extent 0 in its shape [0, 1152921504606846976]: expected 1 or more");
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {int64_t{1} << 61}, {int64_t{1} << 30, int64_t{1} << 34}, std::vector<int64_t>(33, 1)})
    EXPECT_EQ(said(shape).substr(0, 47), "u.w has too many extents, or elements, in its s");
}

TEST_F(Refusals, PointersThatAreMissingOrShared) {
  Unit& unit = engine.add_unit("u");
  const auto said = [&](PointerSlot values, PointerSlot gradients) {
    return refusal([&] { unit.add("w", {3}, values, gradients); });
  };
  EXPECT_EQ(said(nullptr, &gradient),
            "u.w has no pointer to its values: expected the address of a pointer of the model's");
  EXPECT_EQ(said(static_cast<float**>(nullptr), &gradient),
            "u.w has no pointer to its values: expected the address of a pointer of the model's");
  EXPECT_EQ(said(&value, &value), "one pointer is given for the values and the gradient of u.w: expected two");
  unit.add("v", {3}, &value, &gradient);
  const std::string shared = "one pointer is given for u.v and for u.w: expected one for each parameter of a unit";
  EXPECT_EQ(said(&value, &other_gradient), shared);
  EXPECT_EQ(said(&other, &gradient), shared);
  EXPECT_EQ(said(&gradient, &other_gradient), shared);
  unit.add("w", {3}, &other, &other_gradient);
  EXPECT_NO_THROW(engine.materialize(ones));
  EXPECT_NO_THROW(train_a_step());
}

/// Units that take turns may, since what is live is one of them.
TEST_F(Refusals, PointersThatUnitsShareWhichAreUsedTogether) {
  for (const bool together : {false, true}) {
    Engine one(world, {});
    for (const char* name : {"a", "b"}) one.add_unit(name).add("w", {3}, &value, &gradient);
    if (together) one.declare_order({{0, 1}});
    const std::string said = refusal([&] { one.materialize(ones); });
    EXPECT_EQ(said, together
                        ? "one pointer is given for a.w and for b.w, which are used together: expected one for each"
                        : "nothing was refused");
  }
}

template <typename Any>
constexpr bool kTakesANumberInAList = requires(Any& engine) {
  engine.forward({0});
};

/// It compiled, as a null pointer.
TEST_F(Refusals, UnitsByANullPointer) {
  static_assert(!kTakesANumberInAList<Engine>);
  declare_named("w");
  engine.materialize(ones);
  const Pass pass = engine.micro_batch();
  const Unit* none = nullptr;
  EXPECT_EQ(refusal([&] { const Scope live = engine.forward({none}); }),
            "a unit is given as a null pointer: expected the address of one of engine.units()");
}

TEST_F(Refusals, NamesThatACheckpointHoldsAreTaken) {
  for (const std::string& name : {std::string("a/b"), std::string("ä → ш"), std::string(960, 'n'), std::string("a.b")})
    declare_named(name);
  declare_named("many", std::vector<int64_t>(32, 1));
  EXPECT_NO_THROW(engine.plan());
}

TEST_F(Refusals, AModelOfMoreElementsThanCanBeCounted) {
  for (int i = 0; i < 30; ++i) declare_named(fmt::format("w{}", i), {int64_t{1} << 58});
  EXPECT_EQ(refusal([&] { engine.plan(); }), "the model has more than 2^58 elements");
}

TEST_F(Refusals, RatesThatAreNone) {
  for (const double rate : {kNotANumber, kInfinity, -1.0, 1e40})
    EXPECT_NE(refusal([&] { engine.set_learning_rate(rate); }).find("the learning rate is "), std::string::npos);
  EXPECT_NO_THROW(engine.set_learning_rate(0.0));
  for (const double clip : {kNotANumber, kInfinity, -1.0})
    EXPECT_NE(refusal([&] { Engine one(world, {.clip = clip}); }).find("clip is "), std::string::npos);
}

TEST_F(Refusals, AnOptimizerThatNobodyMade) {
  EXPECT_EQ(refusal([&] { Engine one(world, {.optimizer = CustomOptimizer{}}); }),
            "a CustomOptimizer was not made by custom_optimizer()");
}

TEST_F(Refusals, NothingToCall) {
  declare_named("w");
  EXPECT_NE(refusal([&] { engine.materialize({}); }).find("materialize() needs a function"), std::string::npos);
  EXPECT_NO_THROW(engine.materialize(ones));
  EXPECT_EQ(refusal([] { World::threads(2, nullptr); }), "a world needs a function for its ranks to run");
  EXPECT_EQ(refusal([] { World::run(2, nullptr); }), "a world needs a function for its ranks to run");
  EXPECT_EQ(refusal([] { World::run(1, nullptr, {.kind = WorldChoice::kMpi}); }),
            "a world needs a function for its ranks to run");
}

/// It was taken for materialized, and trained on zeros.
TEST_F(Refusals, AnEngineWhoseValuesFailedIsNotMaterialized) {
  declare_named("w");
  const auto fails = [](const ParameterSpec&, int64_t, std::span<float>) { throw std::runtime_error("no file"); };
  EXPECT_THROW(engine.materialize(fails), std::runtime_error);
  EXPECT_EQ(refusal([&] { (void)engine.micro_batch(); }), "materialize() the engine before the first micro-batch");
  engine.materialize(ones);
  EXPECT_EQ(engine.read("w"), std::vector<float>(3, 1.0f));
  EXPECT_NO_THROW(train_a_step());
}

TEST_F(Refusals, UnitsThatAreNotThere) {
  declare_named("w");
  engine.materialize(ones);
  const Pass pass = engine.micro_batch();
  for (const UnitId unit : {-1, 1, 99}) {
    EXPECT_EQ(refusal([&] { const Scope live = engine.forward(std::span(&unit, 1)); }),
              fmt::format("there is no unit {}: there are 1", unit));
    EXPECT_EQ(refusal([&] { engine.pass_over(std::span(&unit, 1)); }),
              fmt::format("there is no unit {}: there are 1", unit));
  }
}

TEST_F(Refusals, SayWhatIsMissing) {
  declare_named("w");
  engine.materialize(ones);
  Unit& unit = engine.units().front();
  EXPECT_EQ(refusal([&] { (void)engine.step(); }), "step() was called before a micro-batch was begun");
  EXPECT_EQ(refusal([&] { unit.pass_over(); }), "open a micro-batch before a unit is passed over");
  {
    const Pass pass = engine.micro_batch();
    {
      const Scope live = unit.forward();
      EXPECT_EQ(refusal([&] { unit.pass_over(); }), "unit unit 0 is still live: close its scope first");
    }
    EXPECT_EQ(refusal([&] { (void)engine.step(); }),
              "step() was called where the declared order has backward of unit 0");
    const Scope live = unit.backward();
  }
  EXPECT_NO_THROW(engine.step());
}

TEST_F(Refusals, DeadlinesThatAreNoTime) {
  for (const double seconds : {0.0, -1.0, kNotANumber}) {
    EXPECT_NE(
        refusal([&] { World::threads(2, [](World&) {}, {.timeout_seconds = seconds}); }).find("timeout_seconds is "),
        std::string::npos);
    EXPECT_NE(refusal([&] { World::from_environment({.timeout_seconds = seconds}); }).find("timeout_seconds is "),
              std::string::npos);
  }
}

/// Beyond what a clock counts in they were over at once.
TEST_F(Refusals, DeadlinesMayBeAsLongAsOneLikes) {
  for (const double seconds : {1e10, 1e300, kInfinity}) {
    const auto meet = [](World& ranks) {
      double one = 1;
      if (ranks.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ranks.sum(std::span(&one, 1));
      EXPECT_EQ(one, 2);
    };
    EXPECT_NO_THROW(World::threads(2, meet, {.device = DeviceChoice::kHost, .timeout_seconds = seconds}));
  }
}

// What ranks ask each other for -----------------------------------------------------------------------------------------

TEST(Reading, OfOtherNamesOnOtherRanksIsRefusedOnAll) {
  World::threads(
      3,
      [](World& world) {
        Trainee trainee(world, {});
        const std::string said =
            refusal([&] { trainee.engine.read(world.rank() == 1 ? "layer.1.weight" : "layer.0.weight"); });
        EXPECT_EQ(said, "rank 1 is reading layer.1.weight, rank 0 is reading layer.0.weight");
        EXPECT_NO_THROW(trainee.engine.read("layer.0.weight"));
      },
      kHosts);
}

/// Runs of five elements, in turn of each rank, and a copy of all that is saved by none.
StateTensor dealt_out(std::vector<float>& values, int rank, int rank_count) {
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

TEST(Reading, StreamsEveryElementOnceInOrderWhateverIsStaged) {
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
              stream.run("testing", dealt_out(values, world.rank(), world.rank_count()),
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

/// More than one part of it: the masters of a tensor of 6 MiB, read and carried over.
TEST(Reading, LargeTensorsComeWhole) {
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
        EXPECT_EQ(world.device().ledger().in_use_peak_bytes(), standing_bytes(schedule) + schedule.stream_bytes);
        engine.set_trainable("u", false);
        EXPECT_TRUE(engine.read("u.w") == expected);
      },
      kHosts);
}

}  // namespace
}  // namespace aliquot
