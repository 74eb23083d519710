// Tests of mistakes that users make. The exception must have the message that docs/wrapping.md shows.
#include <aliquot/aliquot.h>
#include <chrono>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <limits>
#include <string>
#include <thread>

namespace {

/// Expects the exact message in the table of the guide.
void expect_in_guide(const std::string& sentence) {
  std::ifstream file(ALIQUOT_GUIDE);
  const std::string guide{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(guide.find("| `" + sentence + "` |"), std::string::npos) << ALIQUOT_GUIDE << " does not show: " << sentence;
}

template <typename Body>
void expect_told(const std::string& sentence, Body body) {
  try {
    body();
    ADD_FAILURE() << "no exception was thrown, expected one with the message: " << sentence;
  } catch (const aliquot::UsageError& error) {
    EXPECT_EQ(error.what(), sentence);
  }
  expect_in_guide(sentence);
}

void zeros(const aliquot::ParameterSpec&, int64_t, std::span<float> values) {
  for (float& value : values) value = 0;
}

/// Two units, a and b, of one parameter each.
struct Pair {
  Pair(aliquot::World& world, const aliquot::EngineOptions& options = {}) : engine(world, options) {
    engine.add_unit("a").add("w", {300}, &value[0], &gradient[0]);
    engine.add_unit("b").add("w", {300}, &value[1], &gradient[1]);
  }
  aliquot::Unit& a() { return engine.units()[0]; }
  aliquot::Unit& b() { return engine.units()[1]; }
  void forward() {
    engine.micro_batch();
    for (auto& unit : engine.units()) auto live = unit.forward();
  }
  void passes() {
    forward();
    for (auto& unit : reversed(engine.units())) auto live = unit.backward();
  }

  float *value[2] = {}, *gradient[2] = {};
  aliquot::Engine engine;
};

template <typename Body>
void with_pair(Body body, const aliquot::EngineOptions& options = {}) {
  aliquot::World::threads(1, [&](aliquot::World& world) {
    Pair pair(world, options);
    pair.engine.materialize(zeros);
    body(pair);
  });
}

/// Reads the memory behind a pointer; the compiler cannot remove the read.
float touch(const float* at) { return *static_cast<const volatile float*>(at); }

TEST(Mistakes, AWeightUsedOutsideItsScope) {
  const auto wrong = [] {
    aliquot::install_fault_names();
    with_pair([](Pair& pair) {
      pair.forward();
      touch(pair.value[0]);
    });
  };
  const std::string sentence =
      "aliquot: parameter a.w was accessed outside of an open scope: access it only while the scope of unit.forward() "
      "or unit.backward() is open";
  EXPECT_DEATH(wrong(), "aliquot: parameter a.w was accessed outside of an open scope: access it only");
  expect_in_guide(sentence);
}

TEST(Mistakes, AGradientUsedInForward) {
  const auto wrong = [] {
    aliquot::install_fault_names();
    with_pair([](Pair& pair) {
      pair.engine.micro_batch();
      const auto live = pair.a().forward();
      touch(pair.gradient[0]);
    });
  };
  EXPECT_DEATH(wrong(), "aliquot: the gradient of a.w was accessed outside of an open scope");
}

TEST(Mistakes, AUnitLeftOut) {
  with_pair([](Pair& pair) {
    pair.engine.micro_batch();
    expect_told("forward of b was opened, but the declared order expects forward of a",
                [&] { auto live = pair.b().forward(); });
  });
}

TEST(Mistakes, BackwardInTheOrderOfForward) {
  with_pair([](Pair& pair) {
    pair.forward();
    expect_told("backward of a was opened, but the declared order expects backward of b",
                [&] { auto live = pair.a().backward(); });
  });
}

TEST(Mistakes, AStepTakenTooSoon) {
  with_pair([](Pair& pair) {
    pair.forward();
    expect_told("step() was called, but the declared order expects backward of b", [&] { (void)pair.engine.step(); });
  });
}

TEST(Mistakes, TwoUnitsOpenAtOnce) {
  with_pair([](Pair& pair) {
    pair.engine.micro_batch();
    const auto live = pair.a().forward();
    expect_told("the scope of unit a is still open: close it before you open another, or open both units with one call",
                [&] { auto another = pair.b().forward(); });
  });
}

TEST(Mistakes, NoMicroBatch) {
  with_pair([](Pair& pair) {
    expect_told("a unit was opened outside of a micro-batch: call micro_batch() first",
                [&] { auto live = pair.a().forward(); });
  });
}

TEST(Mistakes, MoreMicroBatchesThanDeclared) {
  with_pair(
      [](Pair& pair) {
        pair.passes();
        pair.passes();
        expect_told("EngineOptions::accumulate is 2, and this step already has that many micro-batches: call step()",
                    [&] { pair.engine.micro_batch(); });
      },
      {.accumulate = 2});
}

TEST(Mistakes, AMicroBatchWithoutItsBackward) {
  with_pair(
      [](Pair& pair) {
        pair.forward();
        expect_told("micro-batch 0 is not finished: backward of b comes next", [&] { pair.engine.micro_batch(); });
      },
      {.accumulate = 2});
}

TEST(Mistakes, AGradientWithoutAPointer) {
  aliquot::World::threads(1, [](aliquot::World& world) {
    float* value = nullptr;
    aliquot::Engine engine(world, {});
    engine.add_unit("a").add("w", {300}, &value, nullptr);
    expect_told(
        "a.w is trainable, but has no pointer to its gradient: pass one to Unit::add(), or declare the parameter with "
        "{.trainable = "
        "false}",
        [&] { engine.materialize(zeros); });
  });
}

TEST(Mistakes, AFrozenParameterNeedsNoGradientUntilItIsTrainable) {
  aliquot::World::threads(1, [](aliquot::World& world) {
    float *value = nullptr, *other = nullptr, *gradient = nullptr;
    aliquot::Engine engine(world, {});
    engine.add_unit("a").add("w", {300}, &value, nullptr, {.trainable = false});
    engine.add_unit("b").add("w", {300}, &other, &gradient);
    engine.materialize(zeros);
    expect_told(
        "a.w is trainable, but has no pointer to its gradient: pass one to Unit::add(), or declare the parameter with "
        "{.trainable = "
        "false}",
        [&] { engine.set_trainable("a.", true); });
    engine.micro_batch();
    for (auto& unit : engine.units()) auto live = unit.forward();
    for (auto& unit : reversed(engine.units())) auto live = unit.backward();
    EXPECT_FALSE(engine.step().skipped);
  });
}

TEST(Mistakes, ATiedTensorDeclaredTwice) {
  aliquot::World::threads(1, [](aliquot::World& world) {
    float *value = nullptr, *gradient = nullptr;
    aliquot::Engine engine(world, {});
    engine.add_unit("first").add(".table", {300}, &value, &gradient);
    engine.add_unit("last").add(".table", {300}, &value, &gradient);
    expect_told("two parameters are both named table; a tied tensor is declared once, in a unit of its own",
                [&] { engine.plan(); });
  });
}

TEST(Mistakes, APointerOfAnotherType) {
  expect_told(
      "the model's pointer to the values of a.w points to elements of 4 bytes, but the engine stores bfloat16: use a "
      "pointer to elements of 2 bytes, or change EngineOptions::precision",
      [] { with_pair([](Pair&) {}, {.precision = {.compute = aliquot::DType::kBFloat16}}); });
}

TEST(Mistakes, AUnitAddedTooLate) {
  with_pair([](Pair& pair) {
    expect_told("add_unit() was called after materialize(): call add_unit() before materialize()",
                [&] { pair.engine.add_unit("c"); });
  });
}

TEST(Mistakes, AssignedGradientsSummedOverMicroBatches) {
  aliquot::World::threads(1, [](aliquot::World& world) {
    Pair pair(world, {.zero_stage = 1, .accumulate = 2});
    pair.a().assigns_gradients();
    expect_told(
        "unit a assigns its gradients, so micro-batches cannot be summed in full gradients: set "
        "EngineOptions::accumulate_into to shard, or do not call Unit::assigns_gradients()",
        [&] { pair.engine.plan(); });
  });
}

TEST(Mistakes, RanksThatDeclareDifferentModels) {
  expect_told(
      "the plan or options of rank 1 differ from those of rank 0: rank 0 has \"unit a: a.w float32 [10] lr x 1\", "
      "rank 1 "
      "has \"unit a: a.w "
      "float32 [20] lr x 1\"",
      [] {
        aliquot::World::threads(2, [](aliquot::World& world) {
          float *value = nullptr, *gradient = nullptr;
          aliquot::Engine engine(world, {});
          engine.add_unit("a").add("w", {world.rank() == 0 ? 10 : 20}, &value, &gradient);
          engine.materialize(zeros);
        });
      });
}

TEST(Mistakes, ARankThatStopsBeforeTheStep) {
  std::string said;
  try {
    aliquot::World::threads(2,
                            [](aliquot::World& world) {
                              Pair pair(world);
                              pair.engine.materialize(zeros);
                              if (world.rank() == 1) return std::this_thread::sleep_for(std::chrono::seconds(2));
                              pair.passes();
                              EXPECT_FALSE(pair.engine.step().skipped);
                            },
                            {.timeout_seconds = 0.3});
    ADD_FAILURE() << "rank 0 did not report that rank 1 stopped";
  } catch (const aliquot::CommunicationError& error) {
    said = error.what();
  }
  EXPECT_NE(said.find("rank 0 waited"), std::string::npos) << said;
  EXPECT_NE(said.find("rank 1 never arrived, and it had no earlier operation"), std::string::npos) << said;
}

/// The calls use different lanes, so no collective is compared with another. All ranks wait, and are told at once.
TEST(Mistakes, RanksThatMakeDifferentCalls) {
  const auto began = std::chrono::steady_clock::now();
  std::string said;
  try {
    aliquot::World::threads(2, [](aliquot::World& world) {
      Pair pair(world, {.zero_stage = 3, .gather = aliquot::GatherMode::kCopy});
      pair.engine.materialize(zeros);
      double loss = 1;
      if (world.rank() == 0) world.sum({&loss, 1});
      if (world.rank() == 1) pair.forward();
    });
    ADD_FAILURE() << "no error was thrown";
  } catch (const aliquot::CommunicationError& error) {
    said = error.what();
  }
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(), 10) << said;
  const std::string sentence =
      "no rank can continue: rank 0 waits in all-reduce of 1 numbers (sum) #1 (World::sum), rank 1 waits in all-gather "
      "of 1024 bytes #1 (a, step 1): all ranks must make the same calls in the same order";
  EXPECT_EQ(said, sentence);
  expect_in_guide(sentence);
}

TEST(Mistakes, AShapeWithoutElements) {
  aliquot::World::threads(1, [](aliquot::World& world) {
    float *value = nullptr, *gradient = nullptr;
    aliquot::Engine engine(world, {});
    expect_told("a.w has the extent 0 in its shape [4, 0]: expected 1 or more", [&] {
      engine.add_unit("a").add("w", {4, 0}, &value, &gradient);
    });
  });
}

TEST(Mistakes, ValuesAndGradientAtOnePointer) {
  aliquot::World::threads(1, [](aliquot::World& world) {
    float* value = nullptr;
    aliquot::Engine engine(world, {});
    expect_told("the values and the gradient of a.w use the same pointer: expected a different pointer for each",
                [&] { engine.add_unit("a").add("w", {300}, &value, &value); });
  });
}

TEST(Mistakes, TwoSlicesUsedTogether) {
  aliquot::World::threads(1, [](aliquot::World& world) {
    float *value = nullptr, *gradient = nullptr;
    aliquot::Engine engine(world, {});
    for (const int l : {0, 1})
      engine.add_unit(l == 0 ? "a" : "b").add("w", {4}, aliquot::slice(&value, l, 2), aliquot::slice(&gradient, l, 2));
    engine.declare_order({{0, 1}});
    expect_told(
        "a.w and b.w use the same pointer, but are used together: expected a use of one slice only, because a pointer "
        "leads to one slice at a time",
        [&] { engine.materialize(zeros); });
  });
}

TEST(Mistakes, AnUnfinishedEvaluation) {
  with_pair([](Pair& pair) {
    { const auto live = pair.a().evaluate(); }
    expect_told("an evaluation is not finished: evaluate of b comes next", [&] { pair.engine.micro_batch(); });
  });
}

TEST(Mistakes, AGradientWrittenBeyondItsShape) {
  with_pair(
      [](Pair& pair) {
        pair.forward();
        {
          const auto live = pair.b().backward();
          pair.gradient[1][300] += 1;
        }
        expect_told(
            "backward b wrote beyond the gradient of b.w: at element 300, but the declared elements are 0 to 299 "
            "(found by EngineOptions::check)",
            [&] { const auto live = pair.a().backward(); });
      },
      {.check = true});
}

TEST(Mistakes, AParameterWrittenByTheModel) {
  const auto wrong = [] {
    with_pair(
        [](Pair& pair) {
          pair.engine.micro_batch();
          const auto live = pair.a().forward();
          *static_cast<volatile float*>(pair.value[0]) = 1;
        },
        {.check = true});
  };
  const std::string sentence =
      "aliquot: parameter a.w was written: a model must not write its parameters; only engine.step() changes them";
  EXPECT_DEATH(wrong(), "aliquot: parameter a.w was written: a model must not write its parameters");
  expect_in_guide(sentence);
}

TEST(Mistakes, ACheckpointInTheMiddleOfAStep) {
  with_pair([](Pair& pair) {
    pair.passes();
    expect_told("state() must be called between steps: the current step is not finished", [&] { pair.engine.state(); });
  });
}

TEST(Mistakes, AGradientThatIsNotFinite) {
  with_pair([](Pair& pair) {
    pair.forward();
    for (auto& unit : reversed(pair.engine.units())) {
      const auto live = unit.backward();
      if (unit.index() == 0) pair.gradient[0][7] = std::numeric_limits<float>::infinity();
    }
    const aliquot::StepReport report = pair.engine.step();
    EXPECT_TRUE(report.skipped);
    EXPECT_EQ(report.first_not_finite, "a.w");
    EXPECT_EQ(pair.engine.read("a.w")[7], 0);
  });
}

}  // namespace
