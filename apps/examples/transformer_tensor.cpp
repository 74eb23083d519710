/* transformer_sharded.cpp in tensor groups: the ranks of a group divide the hidden layer of each block. Compare the two
 * files to see all changes.
 *
 *   transformer_tensor [STEPS [TENSOR [RANKS [ZERO_STAGE]]]]      or under mpirun
 */
#include <aliquot/aliquot.h>
#include <memory>
#include <stdio.h>
#include <stdlib.h>
#include <string>

#include "transformer_kernels.h"

/* How the ranks of a tensor group divide a tensor: up and its bias by rows, down by columns. */
static aliquot::ParameterOptions division(const std::string& name) {
  if (name == "up" || name == "up_bias") return {.split = aliquot::Split::rows()};
  if (name == "down") return {.split = aliquot::Split::columns()};
  return {};
}

/* A block sums its output in forward, and the gradient of its input in backward. Both partial sums are in scratch. */
static aliquot::UseActivations block_activations(int tensor) {
  using enum aliquot::UsePart;
  const aliquot::UseCollective sum{
      .name = "sum", .buffer = aliquot::UseBuffer::kScratch, .rows = TOKENS, .row_elements = WIDTH};
  aliquot::UseCollective back = sum;
  back.name = "back", back.part = kBackward;
  return {.scratch_bytes = sum.size_bytes(tensor), .collectives = {sum, back}};
}

static void declare(aliquot::Engine& engine, Model* m) {
  Tensor weights[TENSORS], gradients[TENSORS];
  list_tensors(&m->weights, weights);
  list_tensors(&m->gradients, gradients);
  for (int unit = 0; unit < UNITS; ++unit) engine.add_unit(std::to_string(unit));
  for (int t = 0; t < TENSORS; ++t) {
    const Tensor& w = weights[t];
    engine.units()[w.unit].add(w.name, w.columns > 0 ? std::vector{w.rows, w.columns} : std::vector{w.rows}, w.at,
                               gradients[t].at, division(w.name));
  }
  aliquot::ActivationSpec activations{.uses = std::vector<aliquot::UseActivations>(UNITS)};
  for (int l = 0; l < LAYERS; ++l) activations.uses[l + 1] = block_activations(engine.options().tensor);
  engine.declare_activations(activations);
  int t = 0;
  engine.materialize([&](const aliquot::ParameterSpec& parameter, int64_t offset, std::span<float> values) {
    while (parameter.tensor.name != std::to_string(weights[t].unit) + "." + weights[t].name) t = (t + 1) % TENSORS;
    for (float& value : values) value = initial(&weights[t], t, offset++);
  });
}

/* Only the first rank of a tensor group adds the bias of the output. */
static void forward(Model* m, int unit, const aliquot::UseMemory& memory, int hidden, bool first) {
  if (unit == 0 || unit > LAYERS) return forward(m, unit);
  float* partial = static_cast<float*>(memory.scratch);
  forward_attention(m, unit - 1);
  forward_hidden(partial, m, unit - 1, hidden, first ? m->weights.block[unit - 1].down_bias : NULL);
  memory.run("sum");
  for (int i = 0; i < TOKENS * WIDTH; ++i) m->x[i] = partial[i] + m->saved[unit - 1].middle[i];
}

static void backward(Model* m, int unit, const aliquot::UseMemory& memory, int hidden) {
  if (unit == 0 || unit > LAYERS) return backward(m, unit);
  float* partial = static_cast<float*>(memory.scratch);
  backward_hidden(partial, m, unit - 1, hidden);
  memory.run("back");
  backward_attention(m, unit - 1, partial);
}

static void train(Model* m, aliquot::World& world, int steps, int tensor, int stage) {
  aliquot::Engine engine(world,
                         {.zero_stage = stage, .tensor = tensor, .optimizer = aliquot::AdamW{.lr = 0.003f}, .clip = 0});
  declare(engine, m);
  const auto [first, end] = aliquot::rank_range(HIDDEN, world.rank() % tensor, tensor);
  const int hidden = static_cast<int>(end - first), data_ranks = world.rank_count() / tensor;
  const bool is_first = world.rank() % tensor == 0;
  for (int step = 1; step <= steps; ++step) {
    engine.micro_batch();
    load_batch(m, (step - 1) * data_ranks + world.rank() / tensor);
    for (int unit = 0; unit < UNITS; ++unit) {
      const auto live = engine.units()[unit].forward();
      forward(m, unit, live.memory(), hidden, is_first);
    }
    for (int unit = UNITS - 1; unit >= 0; --unit) {
      const auto live = engine.units()[unit].backward();
      backward(m, unit, live.memory(), hidden);
    }
    double loss = m->loss / data_ranks;
    if (engine.step().skipped && world.rank() == 0) printf("step %d was skipped\n", step);
    engine.sum_losses({&loss, 1});
    if (world.rank() == 0) printf("step %d loss %.17g\n", step, loss);
  }
}

int main(int count, char** words) {
  const auto number = [&](int at, int otherwise) { return count > at ? atoi(words[at]) : otherwise; };
  aliquot::World::run(number(3, 2), [&](aliquot::World& world) {
    train(std::make_unique<Model>().get(), world, number(1, 20), number(2, 2), number(4, 3));
  });
}
