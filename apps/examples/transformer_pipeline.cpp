/* transformer_sharded.cpp on a pipeline: each pipeline stage runs a part of the units. The kernels are the same. The
 * engine owns the activations that a micro-batch keeps between passes, and sends them between pipeline stages. The
 * backward of a block can run in two parts.
 *
 *   transformer_pipeline [STEPS [PARTS [STAGES [ZERO_STAGE [zero-bubble]]]]]      or under mpirun with STAGES ranks
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

/* What the first part of a block's backward writes for the second part: the gradients of the outputs of its layers, and
 * the inputs of two matrix products, which are outputs of norms. */
typedef struct {
  float down[TOKENS * WIDTH], up[TOKENS * HIDDEN], norm2[TOKENS * WIDTH];
  float project[TOKENS * WIDTH], qkv[TOKENS * 3 * WIDTH], norm1[TOKENS * WIDTH];
  float up_input[TOKENS * WIDTH], qkv_input[TOKENS * WIDTH];
} WeightInputs;

static const int64_t kStreamBytes = sizeof(float) * TOKENS * WIDTH;

static bool is_block(int unit) { return unit > 0 && unit <= LAYERS; }

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
    activations.uses.push_back({.output_bytes = unit > LAYERS ? 0 : kStreamBytes,
                                .kept_bytes = kept,
                                .splits_backward = is_block(unit),
                                .weight_inputs_bytes = is_block(unit) ? int64_t{sizeof(WeightInputs)} : 0});
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

/* The two parts of backward_block(). The first part reads the weights, and the second part adds to the gradients. */
static void backward_input(Model* m, const Block* w, const Saved* k, WeightInputs* to) {
  memcpy(to->down, m->dx, sizeof to->down);
  linear_backward(to->up, NULL, NULL, to->down, NULL, w->down, HIDDEN, WIDTH);
  for (int i = 0; i < TOKENS * HIDDEN; ++i) to->up[i] *= k->hidden[i] > 0 ? 2 * k->hidden[i] : 0.0f;
  linear_backward(to->norm2, NULL, NULL, to->up, NULL, w->up, WIDTH, HIDDEN);
  normalize_backward(m->dx, NULL, NULL, to->norm2, k->normed2, k->scale2, w->norm2);
  memcpy(to->project, m->dx, sizeof to->project);
  linear_backward(m->dy, NULL, NULL, to->project, NULL, w->project, WIDTH, WIDTH);
  attend_backward(to->qkv, m->dy, k->attention, k->qkv);
  linear_backward(to->norm1, NULL, NULL, to->qkv, NULL, w->qkv, WIDTH, 3 * WIDTH);
  normalize_backward(m->dx, NULL, NULL, to->norm1, k->normed1, k->scale1, w->norm1);
  for (int i = 0; i < TOKENS * WIDTH; ++i) {
    to->up_input[i] = k->normed2[i] * w->norm2[i % WIDTH] + w->shift2[i % WIDTH];
    to->qkv_input[i] = k->normed1[i] * w->norm1[i % WIDTH] + w->shift1[i % WIDTH];
  }
}

static void backward_weights(const Block* g, const Saved* k, const WeightInputs* from) {
  linear_backward(NULL, g->down, g->down_bias, from->down, k->active, NULL, HIDDEN, WIDTH);
  linear_backward(NULL, g->up, g->up_bias, from->up, from->up_input, NULL, WIDTH, HIDDEN);
  normalize_backward(NULL, g->norm2, g->shift2, from->norm2, k->normed2, k->scale2, NULL);
  linear_backward(NULL, g->project, g->project_bias, from->project, k->attended, NULL, WIDTH, WIDTH);
  linear_backward(NULL, g->qkv, g->qkv_bias, from->qkv, from->qkv_input, NULL, WIDTH, 3 * WIDTH);
  normalize_backward(NULL, g->norm1, g->shift1, from->norm1, k->normed1, k->scale1, NULL);
}

static void run_backward_part(Model* m, aliquot::UseKind kind, const aliquot::UseMemory& memory) {
  const auto* kept = static_cast<const Saved*>(memory.kept);
  auto* between = static_cast<WeightInputs*>(memory.weight_inputs);
  if (kind == aliquot::UseKind::kBackwardWeights)
    return backward_weights(&m->gradients.block[memory.use - 1], kept, between);
  memcpy(m->dx, memory.backward, sizeof m->dx);
  backward_input(m, &m->weights.block[memory.use - 1], kept, between);
  memcpy(memory.backward, m->dx, sizeof m->dx);
}

static void train(Model* m, aliquot::World& world, int steps, int parts, int stage, bool zero_bubble) {
  using aliquot::PipelineSchedule;
  aliquot::Engine engine(world,
                         {.zero_stage = stage,
                          .accumulate = parts,
                          .pipeline = world.rank_count(),
                          .pipeline_schedule = zero_bubble ? PipelineSchedule::kZeroBubble : PipelineSchedule::k1F1B,
                          .optimizer = aliquot::AdamW{.lr = 0.003f},
                          .clip = 0});
  declare(engine, m);
  for (int step = 1; step <= steps; ++step) {
    double loss = 0;
    while (const auto work = engine.next()) {
      load_batch(m, (step - 1) * parts + work->micro_batch); /* micro-batches alternate */
      switch (work->kind) {
        case aliquot::UseKind::kBackward: run_backward(m, work->memory()); break;
        case aliquot::UseKind::kBackwardInput:
        case aliquot::UseKind::kBackwardWeights: run_backward_part(m, work->kind, work->memory()); break;
        default:
          run_forward(m, work->memory());
          if (work->use > LAYERS) loss += m->loss / parts;
      }
    }
    if (engine.step().skipped && world.rank() == 0) printf("step %d was skipped\n", step);
    engine.sum_losses({&loss, 1});
    if (world.rank() == 0) printf("step %d loss %.17g\n", step, loss);
  }
}

int main(int count, char** words) {
  const auto number = [&](int at, int otherwise) { return count > at ? atoi(words[at]) : otherwise; };
  aliquot::World::run(number(3, 2), [&](aliquot::World& world) {
    train(std::make_unique<Model>().get(), world, number(1, 20), number(2, 4), number(4, 3),
          count > 5 && strcmp(words[5], "zero-bubble") == 0);
  });
}
