/* transformer_cuda.cu, sharded with Aliquot. Compare the two files to see all changes.
 *
 *   transformer_cuda_sharded [STEPS [PARTS [RANKS [ZERO_STAGE]]]]      or under mpirun; ranks can share a GPU
 */
#include <aliquot/aliquot.h>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "transformer_kernels_cuda.h"

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
    for (float& value : values) value = initial(weights[t], t, offset++);
  });
}

static void train(Model* m, aliquot::World& world, int steps, int parts, int stage) {
  aliquot::Engine engine(
      world, {.zero_stage = stage, .accumulate = parts, .optimizer = aliquot::AdamW{.lr = 0.003f}, .clip = 0});
  engine.compute_on(aliquot::wrap_cuda_stream(world.device(), aliquot::Lane::kCompute, m->stream));
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
      loss += read_loss(m) / parts / world.rank_count();
    }
    if (engine.step().skipped && world.rank() == 0) printf("step %d was skipped\n", step);
    world.sum({&loss, 1});
    if (world.rank() == 0) printf("step %d loss %.17g\n", step, loss);
  }
  check(cudaStreamSynchronize(m->stream));
}

int main(int count, char** words) {
  try {
    const auto number = [&](int at, int otherwise) { return count > at ? atoi(words[at]) : otherwise; };
    const auto run_rank = [&](aliquot::World& world) {
      Model m;
      train(&m, world, number(1, 20), number(2, 1), number(4, 3));
    };
    aliquot::World::run(number(3, 2), run_rank, {.device = aliquot::DeviceChoice::kCuda});
    return 0;
  } catch (const std::exception& failure) {
    fprintf(stderr, "transformer_cuda_sharded: %s\n", failure.what());
    return 2;
  }
}
