/* transformer.c, sharded with Aliquot. Compare the two files to see all changes.
 *
 *   transformer_sharded [STEPS [PARTS [RANKS [ZERO_STAGE]]]]      or under mpirun
 */
#include <aliquot/aliquot.h>
#include <memory>
#include <stdio.h>
#include <stdlib.h>
#include <string>

#include "transformer_kernels.h"

static void declare(aliquot::Engine& engine, Model* m) {
  Tensor weights[TENSORS], gradients[TENSORS];
  list_tensors(&m->weights, weights);
  list_tensors(&m->gradients, gradients);
  for (int unit = 0; unit < UNITS; ++unit) engine.add_unit(std::to_string(unit));
  for (int t = 0; t < TENSORS; ++t) {
    const Tensor& w = weights[t];
    engine.units()[w.unit].add(w.name, w.columns > 0 ? std::vector{w.rows, w.columns} : std::vector{w.rows}, w.at,
                               gradients[t].at);
  }
  int t = 0;
  engine.materialize([&](const aliquot::ParameterSpec& parameter, int64_t offset, std::span<float> values) {
    while (parameter.tensor.name != std::to_string(weights[t].unit) + "." + weights[t].name) t = (t + 1) % TENSORS;
    for (float& value : values) value = initial(&weights[t], t, offset++);
  });
}

static void train(Model* m, aliquot::World& world, int steps, int parts, int stage) {
  aliquot::Engine engine(
      world, {.zero_stage = stage, .accumulate = parts, .optimizer = aliquot::AdamW{.lr = 0.003f}, .clip = 0});
  declare(engine, m);
  for (int step = 1; step <= steps; ++step) {
    double loss = 0;
    for (int part = 0; part < parts; ++part) {
      engine.micro_batch();
      load_batch(m, ((step - 1) * parts + part) * world.rank_count() + world.rank());
      for (int unit = 0; unit < UNITS; ++unit) {
        const auto live = engine.units()[unit].forward();
        forward(m, unit);
      }
      for (int unit = UNITS - 1; unit >= 0; --unit) {
        const auto live = engine.units()[unit].backward();
        backward(m, unit);
      }
      loss += m->loss / parts / world.rank_count();
    }
    if (engine.step().skipped && world.rank() == 0) printf("step %d was skipped\n", step);
    world.sum({&loss, 1});
    if (world.rank() == 0) printf("step %d loss %.17g\n", step, loss);
  }
}

int main(int count, char** words) {
  const auto number = [&](int at, int otherwise) { return count > at ? atoi(words[at]) : otherwise; };
  aliquot::World::run(number(3, 2), [&](aliquot::World& world) {
    train(std::make_unique<Model>().get(), world, number(1, 20), number(2, 1), number(4, 3));
  });
}
