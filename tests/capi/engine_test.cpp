// Tests worlds, engines and steps of the C interface: return values, and the messages of failures.
#include <aliquot/c.h>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <gtest/gtest.h>
#include <limits>
#include <stdlib.h>
#include <string>
#include <vector>

namespace {

/// A chain of scalars: y = x w + b, layer by layer.
struct Chain {
  static constexpr int kLayers = 3;
  struct Layer {
    float *weight, *weight_gradient, *bias, *bias_gradient;
  };
  std::array<Layer, kLayers> layers{};
  std::array<float, kLayers + 1> inputs{};
  float slope = 0;

  void forward(int l) { inputs[l + 1] = inputs[l] * *layers[l].weight + *layers[l].bias; }
  void backward(int l) {
    *layers[l].weight_gradient += slope * inputs[l];
    *layers[l].bias_gradient += slope;
    slope *= *layers[l].weight;
  }
};

int fill_with_half(void*, const char*, int64_t, int64_t count, float* values) {
  for (int64_t i = 0; i < count; ++i) values[i] = 0.5f;
  return ALIQUOT_DONE;
}

#define ASSERT_DONE(call) ASSERT_EQ(call, ALIQUOT_DONE) << aliquot_message()
#define EXPECT_DONE(call) EXPECT_EQ(call, ALIQUOT_DONE) << aliquot_message()
#define EXPECT_USAGE(call, text)  \
  EXPECT_EQ(call, ALIQUOT_USAGE); \
  EXPECT_NE(std::string(aliquot_message()).find(text), std::string::npos) << aliquot_message()

struct Rank {
  aliquot_world* world = nullptr;
  aliquot_engine* engine = nullptr;
  Chain chain;

  void declare() {
    const int64_t one[] = {1};
    for (int l = 0; l < Chain::kLayers; ++l) {
      auto& layer = chain.layers[l];
      const aliquot_parameter weight = {"weight", 1, one, &layer.weight, &layer.weight_gradient, 0, 0, 0, 0, 0};
      const aliquot_parameter bias = {"bias", 1, one, &layer.bias, &layer.bias_gradient, 0, 1, 0.5f, 0, 0};
      int unit = -1;
      ASSERT_DONE(aliquot_add_unit(engine, ("layer." + std::to_string(l)).c_str(), &unit));
      ASSERT_EQ(unit, l);
      ASSERT_DONE(aliquot_add_parameter(engine, unit, &weight));
      ASSERT_DONE(aliquot_add_parameter(engine, unit, &bias));
    }
  }
  void use(int kind, int l) {
    ASSERT_DONE(aliquot_open(engine, kind, 1, &l));
    kind == ALIQUOT_BACKWARD ? chain.backward(l) : chain.forward(l);
    ASSERT_DONE(aliquot_close(engine));
  }
  void run_forward_and_backward() {
    ASSERT_DONE(aliquot_micro_batch(engine));
    chain.inputs[0] = 1;
    for (int l = 0; l < Chain::kLayers; ++l) use(ALIQUOT_FORWARD, l);
    chain.slope = chain.inputs.back() - 3;
    for (int l = Chain::kLayers - 1; l >= 0; --l) use(ALIQUOT_BACKWARD, l);
  }
  float read(const char* name) {
    float value = -1;
    EXPECT_DONE(aliquot_read(engine, name, 1, &value));
    return value;
  }
};

/// Runs `body` on `count` ranks. Each rank has an engine with the units of its Chain.
void on_ranks(int count, const std::function<void(Rank&)>& body,
              std::vector<std::pair<const char*, const char*>> set = {}) {
  aliquot_options* options = nullptr;
  ASSERT_DONE(aliquot_options_create(&options));
  for (const auto& [name, value] : set) ASSERT_DONE(aliquot_options_set(options, name, value));
  struct Context {
    const std::function<void(Rank&)>* body;
    aliquot_options* options;
  } context{&body, options};
  const auto run = [](aliquot_world* world, void* of) -> int {
    Rank rank;
    rank.world = world;
    const auto* given = static_cast<Context*>(of);
    if (const int status = aliquot_engine_create(world, given->options, &rank.engine); status != 0) return status;
    rank.declare();
    (*given->body)(rank);
    aliquot_engine_free(rank.engine);
    return ALIQUOT_DONE;
  };
  EXPECT_DONE(aliquot_world_threads(count, run, &context, options));
  aliquot_options_free(options);
}

/// Runs a use that aliquot_next() opened. Returns the loss after the forward of the last layer, and 0 otherwise.
double run_work(Chain& chain, const aliquot_work& work) {
  const aliquot_use_memory& memory = work.memory;
  auto& layer = chain.layers[static_cast<std::size_t>(work.use)];
  const bool last = work.use == Chain::kLayers - 1, weights = work.kind == ALIQUOT_BACKWARD_WEIGHTS;
  const float x =
      work.use == 0 ? 1.0f + static_cast<float>(work.micro_batch) : *static_cast<const float*>(memory.input);
  auto* output = static_cast<float*>(memory.output);
  auto* slope = static_cast<float*>(memory.backward);
  auto* weight_inputs = static_cast<float*>(memory.weight_inputs);
  EXPECT_EQ(weight_inputs != nullptr, weights || work.kind == ALIQUOT_BACKWARD_INPUT);
  if (work.kind == ALIQUOT_FORWARD) {
    *output = x * *layer.weight + *layer.bias;
    return last ? *output - 3 : 0;
  }
  if (last && !weights) *slope = *output - 3;
  const float gradient = weights ? *weight_inputs : *slope;
  if (work.kind == ALIQUOT_BACKWARD_INPUT) {
    *weight_inputs = gradient;
  } else {
    *layer.weight_gradient += gradient * x;
    *layer.bias_gradient += gradient;
  }
  if (!weights) *slope *= *layer.weight;
  return 0;
}

/// Trains two steps of four micro-batches through aliquot_next(), and returns the parameters and the loss.
std::vector<double> train_with_next(int stages, const char* schedule = "1f1b") {
  std::vector<double> results;
  on_ranks(
      stages,
      [&](Rank& rank) {
        aliquot_activations uses[Chain::kLayers] = {};
        for (auto& use : uses) {
          use.output = use.weight_inputs = sizeof(float);
          use.splits_backward = 1;
        }
        ASSERT_DONE(aliquot_declare_activations(rank.engine, Chain::kLayers, uses, sizeof(float), nullptr, nullptr));
        ASSERT_DONE(aliquot_materialize(rank.engine, fill_with_half, nullptr));
        double loss = 0;
        for (int step = 0; step < 2; ++step) {
          loss = 0;
          aliquot_work work;
          for (;;) {
            ASSERT_DONE(aliquot_next(rank.engine, &work));
            if (work.kind == ALIQUOT_NO_WORK) break;
            ASSERT_EQ(work.unit_count, 1);
            ASSERT_EQ(work.units[0], work.use);
            loss += run_work(rank.chain, work);
            ASSERT_DONE(aliquot_close(rank.engine));
          }
          ASSERT_DONE(aliquot_step(rank.engine, nullptr));
        }
        int evaluated = 0;
        aliquot_work work;
        do {
          ASSERT_DONE(aliquot_next_evaluation(rank.engine, &work));
          if (work.kind == ALIQUOT_NO_WORK) break;
          EXPECT_EQ(work.kind, ALIQUOT_EVALUATE);
          ++evaluated;
          ASSERT_DONE(aliquot_close(rank.engine));
        } while (true);
        EXPECT_GE(evaluated, 1);
        ASSERT_DONE(aliquot_sum_losses(rank.engine, 1, &loss));
        EXPECT_USAGE(aliquot_sum_losses(rank.engine, 513, &loss), "invalid count 513");
        std::vector<double> own = {loss};
        for (const char* name : {"layer.0.weight", "layer.1.bias", "layer.2.weight"}) own.push_back(rank.read(name));
        if (aliquot_rank(rank.world) == 0) results = own;
      },
      {{"accumulate", "4"},
       {"pipeline", stages == 1   ? "1"
                    : stages == 2 ? "2"
                                  : "3"},
       {"pipeline-schedule", schedule}});
  return results;
}

TEST(Capi, ReplaysRepeatTheWorkOfAnotherRank) {
  on_ranks(3,
           [](Rank& rank) {
             ASSERT_DONE(aliquot_materialize(rank.engine, fill_with_half, nullptr));
             for (int step = 1; step <= 4; ++step) {
               int replayed = 0;
               aliquot_work work;
               for (;;) {
                 ASSERT_DONE(aliquot_next(rank.engine, &work));
                 if (work.kind == ALIQUOT_NO_WORK) break;
                 const int own = aliquot_rank(rank.world);
                 EXPECT_EQ(work.data_coordinate, work.replayed ? (own + 1) % 3 : own);
                 replayed += work.replayed;
                 if (work.use == 0 && work.kind == ALIQUOT_FORWARD)
                   rank.chain.inputs[0] = 1.0f + static_cast<float>(work.data_coordinate);
                 if (work.kind == ALIQUOT_FORWARD) rank.chain.forward(work.use);
                 if (work.use == Chain::kLayers - 1 && work.kind == ALIQUOT_FORWARD) {
                   rank.chain.slope = rank.chain.inputs.back() - 3;
                   ASSERT_DONE(aliquot_compare_loss(rank.engine, rank.chain.slope, work.replayed));
                 }
                 if (work.kind == ALIQUOT_BACKWARD) rank.chain.backward(work.use);
                 ASSERT_DONE(aliquot_close(rank.engine));
               }
               EXPECT_EQ(replayed, step % 2 == 0 ? 2 * Chain::kLayers : 0);
               ASSERT_DONE(aliquot_step(rank.engine, nullptr));
             }
           },
           {{"replay-every", "2"}});
}

TEST(Capi, PipelinesTrainWithAliquotNext) {
  const std::vector<double> alone = train_with_next(1);
  ASSERT_EQ(alone.size(), 4u);
  EXPECT_EQ(train_with_next(2), alone);
  EXPECT_EQ(train_with_next(3), alone);
  EXPECT_EQ(train_with_next(2, "zero-bubble"), alone);
  EXPECT_EQ(train_with_next(3, "zero-bubble"), alone);
}

TEST(Capi, StepFillsTheReport) {
  on_ranks(2, [](Rank& rank) {
    ASSERT_DONE(aliquot_materialize(rank.engine, fill_with_half, nullptr));
    EXPECT_DONE(aliquot_set_learning_rate(rank.engine, 0.25));
    rank.run_forward_and_backward();
    aliquot_step_report report;
    ASSERT_DONE(aliquot_step(rank.engine, &report));
    EXPECT_EQ(report.step, 1);
    EXPECT_EQ(report.skipped, 0);
    EXPECT_EQ(report.abandoned_by, -1);
    EXPECT_EQ(report.learning_rate, 0.25);
    EXPECT_STREQ(report.first_not_finite, "");
    EXPECT_GT(report.gradient_norm, 1.0);
    int64_t steps = 0;
    double scale = 0;
    EXPECT_DONE(aliquot_step_count(rank.engine, &steps));
    EXPECT_DONE(aliquot_loss_scale(rank.engine, &scale));
    EXPECT_EQ(steps, 1);
    EXPECT_EQ(scale, 1.0);
    // Without weight decay, Adam's first update equals the learning rate. For the bias, lr_scale halves
    // the rate.
    EXPECT_NEAR(rank.read("layer.2.weight"), 0.5 * (1 - 0.25 * 0.1) + 0.25, 1e-5);
    EXPECT_NEAR(rank.read("layer.2.bias"), 0.5 + 0.125, 1e-5);
    double sums[] = {1, static_cast<double>(aliquot_rank(rank.world))};
    EXPECT_DONE(aliquot_sum(rank.world, sums, 2));
    EXPECT_EQ(sums[0], 2);
    EXPECT_EQ(sums[1], 1);
  });
}

TEST(Capi, PlannedMemoryEqualsMeasuredMemory) {
  on_ranks(2, [](Rank& rank) {
    aliquot_memory planned, measured;
    ASSERT_DONE(aliquot_planned_memory(rank.engine, &planned));
    ASSERT_DONE(aliquot_materialize(rank.engine, fill_with_half, nullptr));
    for (int step = 0; step < 2; ++step) {
      rank.run_forward_and_backward();
      ASSERT_DONE(aliquot_step(rank.engine, nullptr));
    }
    ASSERT_DONE(aliquot_measured_memory(rank.engine, &measured));
    // Three units of two blocks. Each rank owns one block of each unit. AdamW keeps two moments.
    EXPECT_EQ(planned.parameters, 3 * 256 * 4);
    EXPECT_EQ(planned.optimizer, 2 * planned.parameters);
    EXPECT_EQ(planned.parameters, measured.parameters);
    EXPECT_EQ(planned.gradients, measured.gradients);
    EXPECT_EQ(planned.optimizer, measured.optimizer);
    EXPECT_EQ(planned.slots, measured.slots);
    EXPECT_GE(planned.peak, planned.parameters + planned.optimizer);
  });
}

/// Two of the three layers can be recomputed. recompute=block recomputes both.
TEST(Capi, EngineAllocatesActivationsAndRecomputesThem) {
  struct RecomputeContext {
    Rank* rank;
    int count = 0, status = ALIQUOT_DONE;
  };
  const auto body = [](Rank& rank) {
    const aliquot_activations uses[] = {{4, 8, 0, 1, 0, 0}, {4, 8, 4, 1, 0, 0}, {4, 8, 0, 0, 0, 1}};
    EXPECT_USAGE(aliquot_declare_activations(rank.engine, 3, uses, 4, nullptr, nullptr),
                 "without a recompute function");
    RecomputeContext again{&rank};
    const auto fill = [](void* context, const aliquot_use_memory* memory) {
      auto& of = *static_cast<RecomputeContext*>(context);
      ++of.count;
      EXPECT_EQ(memory->recomputed, 1);
      EXPECT_EQ(memory->backward, nullptr);
      EXPECT_NE(of.rank->chain.layers[memory->use].weight, nullptr);
      static_cast<float*>(memory->kept)[1] = 7.0f + static_cast<float>(memory->use);
      return of.status;
    };
    ASSERT_DONE(aliquot_declare_activations(rank.engine, 3, uses, 4, fill, &again));
    ASSERT_DONE(aliquot_materialize(rank.engine, fill_with_half, nullptr));
    aliquot_use_memory memory;
    EXPECT_USAGE(aliquot_memory_of_use(rank.engine, &memory), "no unit was open");
    ASSERT_DONE(aliquot_micro_batch(rank.engine));
    void* output[3] = {};
    for (int l = 0; l < 3; ++l) {
      ASSERT_DONE(aliquot_forward(rank.engine, l));
      ASSERT_DONE(aliquot_memory_of_use(rank.engine, &memory));
      EXPECT_EQ(memory.recomputed, l < 2 ? 1 : 0);
      EXPECT_EQ(memory.input, l == 0 ? nullptr : output[l - 1]);
      EXPECT_EQ(memory.scratch == nullptr, l != 1);
      output[l] = memory.output;
      ASSERT_DONE(aliquot_close(rank.engine));
    }
    for (int l = 2; l >= 1; --l) {
      ASSERT_DONE(aliquot_backward(rank.engine, l));
      ASSERT_DONE(aliquot_memory_of_use(rank.engine, &memory));
      EXPECT_NE(memory.backward, nullptr);
      if (l == 1) EXPECT_EQ(static_cast<float*>(memory.kept)[1], 8.0f);
      ASSERT_DONE(aliquot_close(rank.engine));
    }
    again.status = 9;
    EXPECT_EQ(aliquot_backward(rank.engine, 0), 9);
    EXPECT_NE(std::string(aliquot_message()).find("the recompute callback returned 9"), std::string::npos)
        << aliquot_message();
    aliquot_step_report report;
    ASSERT_DONE(aliquot_step(rank.engine, &report));
    EXPECT_EQ(report.abandoned_by, 0);
    EXPECT_EQ(again.count, 2);
  };
  on_ranks(2, body, {{"recompute", "block"}});
}

TEST(Capi, OnlyAliquotNextOpensPartsOfABackward) {
  on_ranks(1, [](Rank& rank) {
    aliquot_activations uses[Chain::kLayers] = {};
    uses[1].weight_inputs = 8;
    uses[1].splits_backward = 1;
    ASSERT_DONE(aliquot_declare_activations(rank.engine, Chain::kLayers, uses, 0, nullptr, nullptr));
    ASSERT_DONE(aliquot_materialize(rank.engine, fill_with_half, nullptr));
    ASSERT_DONE(aliquot_micro_batch(rank.engine));
    for (int l = 0; l < Chain::kLayers; ++l) rank.use(ALIQUOT_FORWARD, l);
    const int last = Chain::kLayers - 1;
    for (const int part : {ALIQUOT_BACKWARD_INPUT, ALIQUOT_BACKWARD_WEIGHTS}) {
      EXPECT_USAGE(aliquot_open(rank.engine, part, 1, &last), "cannot open a part of a backward");
    }
    EXPECT_USAGE(aliquot_open(rank.engine, 5, 1, &last), "invalid kind of use 5");
    for (int l = last; l >= 0; --l) rank.use(ALIQUOT_BACKWARD, l);
    ASSERT_DONE(aliquot_step(rank.engine, nullptr));
  });
}

TEST(Capi, EvaluatesSeveralUnitsInOneUseAndSkipsUses) {
  on_ranks(2, [](Rank& rank) {
    const int counts[] = {2, 1}, units[] = {0, 1, 2};
    EXPECT_USAGE(aliquot_declare_order(rank.engine, 2, counts, std::array{0, 1, 7}.data()), "invalid unit number 7");
    ASSERT_DONE(aliquot_declare_order(rank.engine, 2, counts, units));
    EXPECT_DONE(aliquot_assigns_gradients(rank.engine, 2));
    ASSERT_DONE(aliquot_materialize(rank.engine, fill_with_half, nullptr));
    const int last = 2;
    ASSERT_DONE(aliquot_open(rank.engine, ALIQUOT_EVALUATE, 2, units));
    rank.chain.inputs[0] = 2;
    rank.chain.forward(0);
    rank.chain.forward(1);
    ASSERT_DONE(aliquot_close(rank.engine));
    ASSERT_DONE(aliquot_evaluate(rank.engine, last));
    rank.chain.forward(2);
    ASSERT_DONE(aliquot_close(rank.engine));
    EXPECT_EQ(rank.chain.inputs.back(), ((2 * 0.5f + 0.5f) * 0.5f + 0.5f) * 0.5f + 0.5f);

    ASSERT_DONE(aliquot_micro_batch(rank.engine));
    EXPECT_USAGE(aliquot_forward(rank.engine, last), "forward of layer.2 was opened, but the declared order expects");
    ASSERT_DONE(aliquot_open(rank.engine, ALIQUOT_FORWARD, 2, units));
    ASSERT_DONE(aliquot_close(rank.engine));
    ASSERT_DONE(aliquot_skip(rank.engine, 1, &last));
    ASSERT_DONE(aliquot_skip(rank.engine, 1, &last));
    ASSERT_DONE(aliquot_pass_over(rank.engine, 2, units));
    aliquot_step_report report;
    ASSERT_DONE(aliquot_step(rank.engine, &report));
    EXPECT_EQ(report.gradient_norm, 0);
  });
}

/// The option "graph" has no effect on hosts, so each step calls the function.
TEST(Capi, PassesRunInACallback) {
  on_ranks(2, [](Rank& rank) {
    ASSERT_DONE(aliquot_materialize(rank.engine, fill_with_half, nullptr));
    struct Passes {
      Rank& rank;
      int calls = 0;
    } passes{rank};
    const auto run = [](void* context) -> int {
      auto& [of, calls] = *static_cast<Passes*>(context);
      if (++calls == 2 && aliquot_rank(of.world) == 1) {
        EXPECT_DONE(aliquot_micro_batch(of.engine));
        EXPECT_DONE(aliquot_forward(of.engine, 0));
        return ALIQUOT_FAULT;
      }
      of.run_forward_and_backward();
      return ALIQUOT_DONE;
    };
    EXPECT_USAGE(aliquot_run_passes(rank.engine, nullptr, nullptr), "passes");
    for (int step = 1; step <= 3; ++step) {
      const bool fails = step == 2 && aliquot_rank(rank.world) == 1;
      EXPECT_EQ(aliquot_run_passes(rank.engine, run, &passes), fails ? ALIQUOT_FAULT : ALIQUOT_DONE);
      aliquot_step_report report;
      ASSERT_DONE(aliquot_step(rank.engine, &report));
      EXPECT_EQ(report.abandoned_by, step == 2 ? 1 : -1);
    }
    EXPECT_EQ(passes.calls, 3);
  });
}

TEST(Capi, AllRanksSkipAnAbandonedStep) {
  on_ranks(2, [](Rank& rank) {
    ASSERT_DONE(aliquot_materialize(rank.engine, fill_with_half, nullptr));
    if (aliquot_rank(rank.world) == 1) {
      ASSERT_DONE(aliquot_micro_batch(rank.engine));
      ASSERT_DONE(aliquot_forward(rank.engine, 0));
      ASSERT_DONE(aliquot_abandon(rank.engine));
      EXPECT_USAGE(aliquot_forward(rank.engine, 1), "call step()");
    } else {
      rank.run_forward_and_backward();
    }
    aliquot_step_report report;
    ASSERT_DONE(aliquot_step(rank.engine, &report));
    EXPECT_EQ(report.skipped, 1);
    EXPECT_EQ(report.abandoned_by, 1);
    EXPECT_EQ(rank.read("layer.0.weight"), 0.5f);
    rank.run_forward_and_backward();
    ASSERT_DONE(aliquot_step(rank.engine, &report));
    EXPECT_EQ(report.skipped, 0);
  });
}

/// After too many skipped steps in a row, a step returns an error status, even if the caller ignores the report.
TEST(Capi, TooManySkippedStepsInARowReturnAnError) {
  on_ranks(1,
           [](Rank& rank) {
             ASSERT_DONE(aliquot_materialize(rank.engine, fill_with_half, nullptr));
             ASSERT_DONE(aliquot_micro_batch(rank.engine));
             for (int l = 0; l < Chain::kLayers; ++l) rank.use(ALIQUOT_FORWARD, l);
             rank.chain.slope = std::numeric_limits<float>::infinity();
             for (int l = Chain::kLayers - 1; l >= 0; --l) rank.use(ALIQUOT_BACKWARD, l);
             EXPECT_EQ(aliquot_step(rank.engine, nullptr), ALIQUOT_NOT_FINITE);
             EXPECT_NE(std::string(aliquot_message()).find("; skipped steps in a row: 1"), std::string::npos);
           },
           {{"max-skipped", "1"}});
}

TEST(Capi, CheckOptionReportsWritesBeyondAGradient) {
  on_ranks(1,
           [](Rank& rank) {
             ASSERT_DONE(aliquot_materialize(rank.engine, fill_with_half, nullptr));
             ASSERT_DONE(aliquot_micro_batch(rank.engine));
             for (int l = 0; l < Chain::kLayers; ++l) rank.use(ALIQUOT_FORWARD, l);
             ASSERT_DONE(aliquot_backward(rank.engine, 2));
             rank.chain.layers[2].bias_gradient[1] = 4;
             ASSERT_DONE(aliquot_close(rank.engine));
             EXPECT_USAGE(aliquot_backward(rank.engine, 1),
                          "backward layer.2 wrote beyond the gradient of layer.2.bias");
           },
           {{"check", "on"}});
}

TEST(Capi, FrozenUnitsAreNotUpdated) {
  on_ranks(1, [](Rank& rank) {
    ASSERT_DONE(aliquot_materialize(rank.engine, fill_with_half, nullptr));
    ASSERT_DONE(aliquot_set_trainable(rank.engine, "layer.2", 0));
    ASSERT_DONE(aliquot_micro_batch(rank.engine));
    for (int l = 0; l < 3; ++l) rank.use(ALIQUOT_FORWARD, l);
    for (int l = 2; l >= 0; --l) {
      ASSERT_DONE(aliquot_backward(rank.engine, l));
      if (l < 2) *rank.chain.layers[l].weight_gradient += 1;
      ASSERT_DONE(aliquot_close(rank.engine));
    }
    ASSERT_DONE(aliquot_step(rank.engine, nullptr));
    EXPECT_EQ(rank.read("layer.2.weight"), 0.5f);
    EXPECT_NE(rank.read("layer.1.weight"), 0.5f);
  });
}

TEST(Capi, SavedCheckpointsLoadOnOtherRankCounts) {
  std::string folder = (std::filesystem::temp_directory_path() / "aliquot-capi-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  float trained = 0;
  on_ranks(2, [&](Rank& rank) {
    ASSERT_DONE(aliquot_materialize(rank.engine, fill_with_half, nullptr));
    int found = 7;
    ASSERT_DONE(aliquot_load_newest(rank.engine, folder.c_str(), &found));
    EXPECT_EQ(found, 0);
    rank.run_forward_and_backward();
    ASSERT_DONE(aliquot_step(rank.engine, nullptr));
    ASSERT_DONE(aliquot_save(rank.engine, folder.c_str(), 1));
    const float now = rank.read("layer.1.weight");
    if (aliquot_rank(rank.world) == 0) trained = now;
  });
  const auto expect_trained = [&](Rank& rank) {
    int64_t steps = 0;
    EXPECT_DONE(aliquot_step_count(rank.engine, &steps));
    EXPECT_EQ(steps, 1);
    EXPECT_EQ(rank.read("layer.1.weight"), trained);
  };
  on_ranks(3, [&](Rank& rank) {
    ASSERT_DONE(aliquot_materialize(rank.engine, fill_with_half, nullptr));
    int found = 0;
    ASSERT_DONE(aliquot_load_newest(rank.engine, folder.c_str(), &found));
    EXPECT_EQ(found, 1);
    expect_trained(rank);
  });
  on_ranks(1, [&](Rank& rank) {
    ASSERT_DONE(aliquot_materialize(rank.engine, fill_with_half, nullptr));
    EXPECT_EQ(aliquot_load(rank.engine, (folder + "/step-00000009").c_str()), ALIQUOT_CHECKPOINT);
    EXPECT_NE(std::string(aliquot_message()).find("step-00000009"), std::string::npos) << aliquot_message();
    ASSERT_DONE(aliquot_load(rank.engine, (folder + "/step-00000001").c_str()));
    expect_trained(rank);
    EXPECT_USAGE(aliquot_load_weights(rank.engine, (folder + "/none.safetensors").c_str()), "none.safetensors");
  });
  std::filesystem::remove_all(folder);
}

TEST(Capi, ReportsReplicasThatDiffer) {
  const auto body = [](Rank& rank) {
    ASSERT_DONE(aliquot_materialize(rank.engine, fill_with_half, nullptr));
    rank.run_forward_and_backward();
    ASSERT_DONE(aliquot_step(rank.engine, nullptr));
    EXPECT_DONE(aliquot_check_copies(rank.engine));
    // On one rank, the model wrongly modifies a parameter.
    for (int l = 0; l < Chain::kLayers; ++l) {
      ASSERT_DONE(aliquot_open(rank.engine, ALIQUOT_EVALUATE, 1, &l));
      if (l == 1 && aliquot_rank(rank.world) == 1) *rank.chain.layers[l].weight += 1;
      ASSERT_DONE(aliquot_close(rank.engine));
    }
    EXPECT_EQ(aliquot_check_copies(rank.engine), ALIQUOT_FAULT);
    EXPECT_NE(std::string(aliquot_message()).find("layer.1"), std::string::npos) << aliquot_message();
  };
  on_ranks(2, body, {{"zero-stage", "0"}});
  EXPECT_USAGE(aliquot_check_copies(nullptr), "the argument engine must not be null");
}

TEST(Capi, InvalidArgumentsAreReported) {
  on_ranks(1, [](Rank& rank) {
    EXPECT_USAGE(aliquot_micro_batch(rank.engine), "call materialize() before");
    EXPECT_USAGE(aliquot_add_parameter(rank.engine, 9, nullptr), "the argument parameter must not be null");
    EXPECT_USAGE(aliquot_assigns_gradients(rank.engine, 9), "invalid unit number 9: the engine has 3 units");
    EXPECT_USAGE(aliquot_add_unit(rank.engine, nullptr, nullptr), "the argument name must not be null");
    EXPECT_USAGE(aliquot_materialize(rank.engine, nullptr, nullptr), "the argument initialize must not be null");
    const int none = 0;
    EXPECT_USAGE(aliquot_declare_order(rank.engine, 1, &none, &none), "unit_counts[0] is 0: expected at least 1");
    for (const int count : {0, -1}) {
      const std::string counted = std::to_string(count) + ": expected at least 1";
      EXPECT_USAGE(aliquot_declare_order(rank.engine, count, &none, &none), "use_count is " + counted);
      EXPECT_USAGE(aliquot_open(rank.engine, ALIQUOT_FORWARD, count, &none), "unit_count is " + counted);
      EXPECT_USAGE(aliquot_skip(rank.engine, count, &none), "unit_count is " + counted);
    }
    EXPECT_USAGE(aliquot_declare_activations(rank.engine, 0, nullptr, 0, nullptr, nullptr),
                 "use_count is 0: expected at least 1");
    const aliquot_parameter shapeless = {"w", 2, nullptr, nullptr, nullptr, 0, 0, 0, 0, 0};
    EXPECT_USAGE(aliquot_add_parameter(rank.engine, 0, &shapeless), "parameter w: shape is null: expected 2 extents");
    const int64_t one[] = {1}, zero[] = {0};
    float *value = nullptr, *gradient = nullptr;
    const aliquot_parameter placeless = {"w", 1, one, nullptr, &gradient, 0, 0, 0, 0, 0};
    EXPECT_USAGE(aliquot_add_parameter(rank.engine, 0, &placeless), "layer.0.w has no pointer to its values");
    const aliquot_parameter empty = {"w", 1, zero, &value, &gradient, 0, 0, 0, 0, 0};
    EXPECT_USAGE(aliquot_add_parameter(rank.engine, 0, &empty), "layer.0.w has the extent 0 in its shape [0]");
    const aliquot_parameter shared = {"w", 1, one, &value, &value, 0, 0, 0, 0, 0};
    EXPECT_USAGE(aliquot_add_parameter(rank.engine, 0, &shared),
                 "the values and the gradient of layer.0.w use the same pointer");
    ASSERT_DONE(aliquot_materialize(rank.engine, fill_with_half, nullptr));
    EXPECT_USAGE(aliquot_close(rank.engine), "no unit was open");
    EXPECT_USAGE(aliquot_open(rank.engine, 5, 1, &none), "invalid kind of use 5");
    float values[2];
    EXPECT_USAGE(aliquot_read(rank.engine, "layer.0.weight", 2, values),
                 "count is 2: expected 1, the number of elements of layer.0.weight");
    EXPECT_USAGE(aliquot_read(rank.engine, "layer.0.weight", 1, nullptr), "the argument values must not be null");
    EXPECT_USAGE(aliquot_read(rank.engine, "layer.7.weight", 2, values), "there is no parameter layer.7.weight");
    EXPECT_USAGE(aliquot_sum(rank.world, nullptr, 3), "the argument values must not be null");
    std::vector<double> many(600);
    EXPECT_USAGE(aliquot_sum(rank.world, many.data(), 600), "World::sum() of 600 values: expected at most 512");
  });
  EXPECT_USAGE(aliquot_world_threads(1, nullptr, nullptr, nullptr), "the argument body must not be null");
  EXPECT_USAGE(aliquot_engine_create(nullptr, nullptr, nullptr), "the argument world must not be null");
  EXPECT_STREQ(aliquot_version(), ALIQUOT_EXPECTED_VERSION);
  const auto dotted = [](int major, int minor, int patch) {
    return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
  };
  EXPECT_EQ(dotted(ALIQUOT_VERSION_MAJOR, ALIQUOT_VERSION_MINOR, ALIQUOT_VERSION_PATCH), ALIQUOT_EXPECTED_VERSION);
  static_assert(ALIQUOT_VERSION >= ALIQUOT_VERSION_NUMBER(0, 1, 0) &&
                ALIQUOT_VERSION < ALIQUOT_VERSION_NUMBER(1, 0, 0));
}

TEST(Capi, RejectsPointersToElementsOfTheWrongSize) {
  const auto declare = [](Rank& rank, int value_bytes) {
    static thread_local uint16_t* value;
    static thread_local float* gradient;
    const int64_t one[] = {1};
    const aliquot_parameter narrow = {"narrow", 1, one, &value, &gradient, 0, 0, 0, value_bytes, 4};
    return aliquot_add_parameter(rank.engine, 0, &narrow);
  };
  on_ranks(
      1,
      [&](Rank& rank) {
        EXPECT_USAGE(
            aliquot_materialize(rank.engine, fill_with_half, nullptr),
            "the model's pointer to the values of layer.0.weight points to elements of 4 bytes, but the engine stores "
            "bfloat16");
      },
      {{"precision", "bf16"}});
  on_ranks(1, [&](Rank& rank) {
    EXPECT_USAGE(declare(rank, 3),
                 "parameter narrow: invalid element size of 3 bytes: expected 4, or 2 for 16-bit types");
    ASSERT_DONE(declare(rank, 2));
    EXPECT_USAGE(aliquot_materialize(rank.engine, fill_with_half, nullptr),
                 "points to elements of 2 bytes, but the engine stores float32");
  });
}

TEST(Capi, RejectsOpeningASecondUnit) {
  on_ranks(1, [](Rank& rank) {
    ASSERT_DONE(aliquot_materialize(rank.engine, fill_with_half, nullptr));
    ASSERT_DONE(aliquot_micro_batch(rank.engine));
    ASSERT_DONE(aliquot_forward(rank.engine, 0));
    EXPECT_USAGE(aliquot_forward(rank.engine, 1), "the scope of unit layer.0 is still open");
    rank.chain.inputs[0] = 1;
    rank.chain.forward(0);  // the rejected call did not close unit 0
    EXPECT_EQ(rank.chain.inputs[1], 1.0f);
    ASSERT_DONE(aliquot_close(rank.engine));
  });
}

TEST(Capi, FailureOfOneRankIsReportedToTheCaller) {
  const auto body = [](aliquot_world* world, void*) -> int {
    if (aliquot_rank(world) == 1) return aliquot_add_unit(nullptr, "x", nullptr);
    double value = 1;
    return aliquot_sum(world, &value, 1);  // the other rank never joins this sum
  };
  EXPECT_EQ(aliquot_world_run(2, body, nullptr, nullptr), ALIQUOT_USAGE);
  EXPECT_STREQ(aliquot_message(), "the argument engine must not be null");
  const auto own = [](aliquot_world*, void*) -> int { return 42; };
  EXPECT_EQ(aliquot_world_threads(1, own, nullptr, nullptr), 42);
  EXPECT_STREQ(aliquot_message(), "the body of rank 0 returned 42");
}

TEST(Capi, FailingInitializeCallbackIsReportedWithTheParameter) {
  const auto body = [](aliquot_world* world, void*) -> int {
    Rank rank;
    aliquot_engine* engine = nullptr;
    aliquot_engine_create(world, nullptr, &engine);
    rank.engine = engine;
    rank.declare();
    const auto fails = [](void*, const char*, int64_t, int64_t, float*) -> int { return ALIQUOT_FAULT; };
    const int status = aliquot_materialize(engine, fails, nullptr);
    const std::string message = aliquot_message();
    EXPECT_EQ(message, "the initialize callback for layer.0.weight returned 3");
    aliquot_engine_free(engine);
    return status;
  };
  EXPECT_EQ(aliquot_world_threads(1, body, nullptr, nullptr), ALIQUOT_FAULT);
}

/// Two units share one pointer, which is the base of an array of two layers.
TEST(Capi, SlicesOfAnArrayOfLayers) {
  const auto body = [](aliquot_world* world, void*) -> int {
    aliquot_engine* engine = nullptr;
    EXPECT_DONE(aliquot_engine_create(world, nullptr, &engine));
    const int64_t shape[] = {3};
    float *weights = nullptr, *gradients = nullptr;
    const aliquot_parameter weight = {"weight", 1, shape, &weights, &gradients, 0, 0, 0, 0, 0};
    for (const char* name : {"layer.0", "layer.1"}) {
      int unit = -1;
      EXPECT_DONE(aliquot_add_unit(engine, name, &unit));
      EXPECT_USAGE(aliquot_add_slice(engine, unit, &weight, 2, 2), "slice() was called with the index 2");
      EXPECT_USAGE(aliquot_add_slice(engine, unit, nullptr, 0, 2), "parameter must not be null");
      EXPECT_DONE(aliquot_add_slice(engine, unit, &weight, unit, 2));
    }
    const auto number = [](void*, const char* parameter, int64_t offset, int64_t count, float* values) -> int {
      for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(parameter[6] - '0') * 10 + offset + i;
      return ALIQUOT_DONE;
    };
    EXPECT_DONE(aliquot_materialize(engine, number, nullptr));
    for (const int unit : {0, 1}) {
      EXPECT_DONE(aliquot_evaluate(engine, unit));
      for (int i = 0; i < 3; ++i) EXPECT_EQ(weights[unit * 3 + i], 10 * unit + i);
      EXPECT_DONE(aliquot_close(engine));
    }
    aliquot_engine_free(engine);
    return ALIQUOT_DONE;
  };
  EXPECT_DONE(aliquot_world_threads(1, body, nullptr, nullptr));
}

TEST(Capi, WorldFromEnvironmentWithoutALauncherHasOneRank) {
  aliquot_world* world = nullptr;
  ASSERT_DONE(aliquot_world_from_environment(nullptr, &world));
  EXPECT_EQ(aliquot_rank(world), 0);
  EXPECT_EQ(aliquot_rank_count(world), 1);
  aliquot_engine* engine = nullptr;
  ASSERT_DONE(aliquot_engine_create(world, nullptr, &engine));
  aliquot_engine_free(engine);
  aliquot_world_free(world);
  aliquot_engine_free(nullptr);
  aliquot_world_free(nullptr);
}

}  // namespace
