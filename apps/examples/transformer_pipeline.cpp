/* transformer_sharded.cpp on a pipeline: each stage runs a part of the units. The kernels are unchanged. The engine
 * owns the activations that a micro-batch keeps between passes, and sends them between stages.
 *
 *   transformer_pipeline [STEPS [PARTS [STAGES [ZERO_STAGE]]]]      or under mpirun with STAGES ranks
 */
#include <aliquot/aliquot.h>
#include <memory>
#include <stdio.h>
#include <stdlib.h>
#include <string>

#include "transformer_kernels.h"

/* What the head keeps from forward to backward. */
typedef struct {
  float normed[TOKENS * WIDTH], scale[TOKENS], probabilities[TOKENS * VOCABULARY];
} SavedHead;

static const int64_t kStreamBytes = sizeof(float) * TOKENS * WIDTH;

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
  aliquot::ActivationSpec activations;
  activations.backward_bytes = kStreamBytes;
  for (int unit = 0; unit < UNITS; ++unit) {
    const int64_t kept = unit > LAYERS ? sizeof(SavedHead) : unit > 0 ? sizeof(Saved) : 0;
    activations.uses.push_back({.output_bytes = unit > LAYERS ? 0 : kStreamBytes, .kept_bytes = kept});
  }
  engine.declare_activations(activations);
  int t = 0;
  engine.materialize([&](const aliquot::ParameterSpec& parameter, int64_t offset, std::span<float> values) {
    while (parameter.tensor.name != std::to_string(weights[t].unit) + "." + weights[t].name) t = (t + 1) % TENSORS;
    for (float& value : values) value = initial(&weights[t], t, offset++);
  });
}

/* Copies the head's arrays between the model and the memory of the micro-batch. */
static void save_head(const Model* m, SavedHead* to) {
  memcpy(to->normed, m->normed, sizeof to->normed);
  memcpy(to->scale, m->scale, sizeof to->scale);
  memcpy(to->probabilities, m->probabilities, sizeof to->probabilities);
}

static void load_head(Model* m, const SavedHead* from) {
  memcpy(m->normed, from->normed, sizeof m->normed);
  memcpy(m->scale, from->scale, sizeof m->scale);
  memcpy(m->probabilities, from->probabilities, sizeof m->probabilities);
}

static void run_forward(Model* m, const aliquot::UseMemory& memory) {
  if (memory.input != nullptr) memcpy(m->x, memory.input, sizeof m->x);
  forward(m, memory.use);
  if (memory.output != nullptr) memcpy(memory.output, m->x, sizeof m->x);
  if (memory.use > LAYERS) {
    save_head(m, static_cast<SavedHead*>(memory.kept));
  } else if (memory.use > 0) {
    memcpy(memory.kept, &m->saved[memory.use - 1], sizeof(Saved));
  }
}

static void run_backward(Model* m, const aliquot::UseMemory& memory) {
  if (memory.use > LAYERS) {
    load_head(m, static_cast<const SavedHead*>(memory.kept));
  } else {
    memcpy(m->dx, memory.backward, sizeof m->dx);
    if (memory.use > 0) memcpy(&m->saved[memory.use - 1], memory.kept, sizeof(Saved));
  }
  backward(m, memory.use);
  memcpy(memory.backward, m->dx, sizeof m->dx);
}

static void train(Model* m, aliquot::World& world, int steps, int parts, int stage) {
  aliquot::Engine engine(world, {.zero_stage = stage,
                                 .accumulate = parts,
                                 .pipeline = world.rank_count(),
                                 .optimizer = aliquot::AdamW{.lr = 0.003f},
                                 .clip = 0});
  declare(engine, m);
  for (int step = 1; step <= steps; ++step) {
    double loss = 0;
    while (const auto work = engine.next()) {
      load_batch(m, (step - 1) * parts + work->micro_batch); /* micro-batches alternate */
      if (work->kind == aliquot::UseKind::kBackward) {
        run_backward(m, work->memory());
        continue;
      }
      run_forward(m, work->memory());
      if (work->use > LAYERS) loss += m->loss / parts;
    }
    if (engine.step().skipped && world.rank() == 0) printf("step %d was skipped\n", step);
    engine.sum_losses({&loss, 1});
    if (world.rank() == 0) printf("step %d loss %.17g\n", step, loss);
  }
}

int main(int count, char** words) {
  const auto number = [&](int at, int otherwise) { return count > at ? atoi(words[at]) : otherwise; };
  aliquot::World::run(number(3, 2), [&](aliquot::World& world) {
    train(std::make_unique<Model>().get(), world, number(1, 20), number(2, 4), number(4, 3));
  });
}
