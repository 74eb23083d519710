#pragma once
/* A simulation, and a network that learns to replace it. Nothing here refers to Aliquot or MPI.
 *
 * The simulation is Burgers' equation on a ring of cells. The network predicts the state after a number of time steps.
 */

#include <stdint.h>
#include <string.h>

enum { CELLS = 32, LAYERS = 3, BATCH = 16, ROWS = BATCH * CELLS, TIME_STEPS = 10, SAMPLES_PER_RUN = 16 };

/* States, and the states that the simulation reaches from them. */
typedef struct {
  float inputs[ROWS], targets[ROWS];
} Batch;

typedef struct {
  float state[CELLS];
  uint32_t seed;
  int samples; /* of the present run */
} Simulation;

/* Adds a part of the difference to the neighbouring cells, and moves each cell with its own speed. */
static void advance(float* state, float advection, float diffusion) {
  float next[CELLS];
  for (int i = 0; i < CELLS; ++i) {
    const float left = state[(i + CELLS - 1) % CELLS], right = state[(i + 1) % CELLS];
    next[i] = (state[i] - advection * state[i] * (right - left)) + diffusion * ((left - state[i]) + (right - state[i]));
  }
  memcpy(state, next, sizeof next);
}

/* Starts a run from a random smooth state. */
static void begin_run(Simulation* s) {
  for (int i = 0; i < CELLS; ++i) {
    s->seed = s->seed * 1664525u + 1013904223u;
    s->state[i] = (float)(s->seed >> 8) / 8388608.0f - 1.0f;
  }
  for (int smooth = 0; smooth < 4; ++smooth) advance(s->state, 0.0f, 0.25f);
  s->samples = 0;
}

/* Continues the simulation, and fills a batch with its states. */
static void next_batch(Simulation* s, Batch* batch) {
  for (int b = 0; b < BATCH; ++b) {
    if (s->samples == 0 || s->samples == SAMPLES_PER_RUN) begin_run(s);
    ++s->samples;
    memcpy(batch->inputs + b * CELLS, s->state, sizeof s->state);
    for (int t = 0; t < TIME_STEPS; ++t) advance(s->state, 0.1f, 0.05f);
    memcpy(batch->targets + b * CELLS, s->state, sizeof s->state);
  }
}

typedef struct {
  float *weight, *weight_gradient, *bias, *bias_gradient;
} Layer;

typedef struct {
  Layer layers[LAYERS];
  float values[LAYERS + 1][ROWS]; /* the input of each layer, then the output */
  float targets[ROWS], slopes[ROWS];
} Network;

static void forward(Network* n, int l) {
  const Layer* layer = &n->layers[l];
  for (int b = 0; b < BATCH; ++b) {
    for (int o = 0; o < CELLS; ++o) {
      float sum = layer->bias[o];
      for (int i = 0; i < CELLS; ++i) sum += layer->weight[o * CELLS + i] * n->values[l][b * CELLS + i];
      n->values[l + 1][b * CELLS + o] = l + 1 < LAYERS && sum < 0 ? 0.1f * sum : sum;
    }
  }
}

/* Adds to the gradients of the layer, and replaces n->slopes by the gradient of the layer's input. */
static void backward(Network* n, int l) {
  const Layer* layer = &n->layers[l];
  float before[ROWS] = {0};
  for (int b = 0; b < BATCH; ++b) {
    for (int o = 0; o < CELLS; ++o) {
      const float result = n->values[l + 1][b * CELLS + o];
      const float slope = n->slopes[b * CELLS + o] * (l + 1 < LAYERS && result < 0 ? 0.1f : 1.0f);
      layer->bias_gradient[o] += slope;
      for (int i = 0; i < CELLS; ++i) {
        layer->weight_gradient[o * CELLS + i] += slope * n->values[l][b * CELLS + i];
        before[b * CELLS + i] += slope * layer->weight[o * CELLS + i];
      }
    }
  }
  memcpy(n->slopes, before, sizeof before);
}

static void load(Network* n, const Batch* batch) {
  memcpy(n->values[0], batch->inputs, sizeof batch->inputs);
  memcpy(n->targets, batch->targets, sizeof batch->targets);
}

/* Returns the mean squared error of the prediction, which is the input plus the output of the last layer. Sets
 * n->slopes. */
static double loss(Network* n) {
  double sum = 0;
  for (int i = 0; i < ROWS; ++i) {
    const float miss = (n->values[0][i] + n->values[LAYERS][i]) - n->targets[i];
    sum += miss * miss;
    n->slopes[i] = 2.0f * miss / (float)ROWS;
  }
  return sum / (double)ROWS;
}

/* The initial value of element `i` of every parameter. */
static float initial(int64_t i) { return (float)(i * 7919 % 1001 - 500) / 2500.0f; }
