/* gpt2.c, sharded with Aliquot. The model is unchanged.
 *
 *   gpt2_sharded [RANKS [ZERO_STAGE [STEPS [FOLDER]]]]      or under mpirun
 *
 * With FOLDER it continues from the newest checkpoint there, if any, and saves one at the end.
 */
#include <aliquot/aliquot.h>
#include <aliquot/checkpoint.h>
#include <iostream>
#include <memory>
#include <stdlib.h>
#include <string>
#include <vector>

#include "gpt2_model.h"

// The units of a use. The first and the last use share the unit of the table of tokens.
static std::vector<aliquot::UnitId> units_of(int use) {
  if (use == 0) return {TOKEN_UNIT, PLACE_UNIT};
  if (use <= LAYERS) return {LAYER_UNIT + use - 1};
  return {LAST_UNIT, TOKEN_UNIT};
}

static void declare(aliquot::Engine& engine, Model* m) {
  Tensor weights[TENSORS], gradients[TENSORS];
  list_tensors(&m->weights, weights);
  list_tensors(&m->gradients, gradients);
  for (int unit = 0; unit < UNITS; ++unit) {
    char name[NAME_LENGTH];
    name_unit(unit, name);
    engine.add_unit(name);
  }
  for (int t = 0; t < TENSORS; ++t) {
    const Tensor& w = weights[t];
    const auto shape = w.columns > 1 ? std::vector{w.rows, w.columns} : std::vector{w.rows};
    for (int l = 0; l < w.layers; ++l)
      engine.units()[w.unit + l].add(w.name, shape, aliquot::slice(w.at, l, w.layers),
                                     aliquot::slice(gradients[t].at, l, w.layers));
  }
  std::vector<std::vector<aliquot::UnitId>> order;
  for (int use = 0; use < USES; ++use) order.push_back(units_of(use));
  engine.declare_order(order);
  engine.materialize([](const aliquot::ParameterSpec& parameter, int64_t offset, std::span<float> values) {
    for (float& value : values) value = initial(parameter.tensor.name.c_str(), offset++);
  });
}

// The forward of training, evaluation and sampling.
static void forward(aliquot::Engine& engine, Model* m, bool trains) {
  for (int use = 0; use < USES; ++use) {
    const auto live = trains ? engine.forward(units_of(use)) : engine.evaluate(units_of(use));
    forward_use(m, use);
  }
}

static void print_mean_loss(aliquot::World& world, int step, const char* what, double loss) {
  loss /= world.rank_count();
  world.sum({&loss, 1});
  if (world.rank() == 0) printf("step %d %s %.17g\n", step, what, loss);
}

static void train_step(aliquot::Engine& engine, Model* m, int step) {
  aliquot::World& world = engine.world();
  const auto pass = engine.micro_batch();
  load_batch(m, (step - 1) * world.rank_count() + world.rank());
  forward(engine, m, true);
  for (int use = USES - 1; use >= 0; --use) {
    const auto live = engine.backward(units_of(use));
    backward_use(m, use);
  }
  if (engine.step().skipped && world.rank() == 0) printf("step %d was skipped\n", step);
  print_mean_loss(world, step, "loss", m->loss);
}

static void evaluate(aliquot::Engine& engine, Model* m, int step) {
  load_batch(m, 1000000 + engine.world().rank());
  forward(engine, m, false);
  print_mean_loss(engine.world(), step, "evaluation", m->loss);
}

// Every rank must run the passes, because each rank has a part of the weights. All ranks choose the same tokens.
static void sample(aliquot::Engine& engine, Model* m) {
  load_batch(m, 0);
  for (int place = LENGTH / 4; place < LENGTH; ++place) {
    forward(engine, m, false);
    choose_token(m, place);
  }
  if (engine.world().rank() == 0) print_text(m);
}

static void train(aliquot::World& world, int zero_stage, int steps, const char* folder) {
  const auto m = std::make_unique<Model>();
  aliquot::Engine engine(world, {.zero_stage = zero_stage, .optimizer = aliquot::AdamW{.lr = 0.002f}, .clip = 0});
  declare(engine, m.get());
  if (folder != nullptr) {
    aliquot::State state = engine.state();
    if (aliquot::load_newest(state, world.communicator(), folder)) engine.adopt(state);
  }
  for (int step = (int)engine.step_count() + 1; step <= steps; ++step) train_step(engine, m.get(), step);
  evaluate(engine, m.get(), steps);
  sample(engine, m.get());
  if (folder != nullptr) aliquot::save(engine.state(), world.communicator(), folder, {.keep_count = 1});
}

int main(int count, char** words) {
  const auto number = [&](int at, int otherwise) { return count > at ? atoi(words[at]) : otherwise; };
  aliquot::install_fault_names();
  aliquot::set_log_sink(aliquot::log_to_standard_error);
  try {
    aliquot::World::run(number(1, 2), [&](aliquot::World& world) {
      train(world, number(2, 3), number(3, 100), count > 4 ? words[4] : nullptr);
    });
  } catch (const aliquot::Error& error) {
    std::cerr << error.what() << "\n";
    return error.exit_code();
  }
}
