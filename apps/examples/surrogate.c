/* Trains the network of surrogate_model.h in one process, with samples from the simulation, in plain C:
 *
 *   surrogate [TRAINERS [STEPS]]      each step has one batch for each of TRAINERS ranks of surrogate_mpi.cpp
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "surrogate_model.h"

enum { WEIGHTS = CELLS * CELLS, LAYER_SIZE = WEIGHTS + CELLS, SIZE = LAYERS * LAYER_SIZE, EVALUATE_EVERY = 20 };

typedef struct {
  float values[SIZE], gradients[SIZE], mean[SIZE], square[SIZE];
} Memory;

static void allocate(Memory* memory, Network* n) {
  for (int l = 0; l < LAYERS; ++l) {
    float *values = memory->values + l * LAYER_SIZE, *gradients = memory->gradients + l * LAYER_SIZE;
    n->layers[l] = (Layer){values, gradients, values + WEIGHTS, gradients + WEIGHTS};
    for (int i = 0; i < WEIGHTS; ++i) n->layers[l].weight[i] = initial(i);
    for (int i = 0; i < CELLS; ++i) n->layers[l].bias[i] = initial(i);
  }
}

/* Applies AdamW. Steps count from 1. The gradients are sums over `parts` batches. Biases are not decayed. */
static void update(Memory* m, int step, int parts) {
  const double rate = 0.003f;
  const float slope = (float)(rate / (1 - pow(0.9, step))), inverse_root = (float)(1 / sqrt(1 - pow(0.95, step)));
  for (int i = 0; i < SIZE; ++i) {
    const float decay = i % LAYER_SIZE < WEIGHTS ? (float)(rate * 0.1) : 0.0f;
    const float g = m->gradients[i] * (1.0f / (float)parts);
    m->mean[i] = 0.9f * m->mean[i] + 0.1f * g;
    m->square[i] = 0.95f * m->square[i] + 0.05f * (g * g);
    m->values[i] = m->values[i] * (1.0f - decay) - slope * (m->mean[i] / (sqrtf(m->square[i]) * inverse_root + 1e-8f));
  }
}

static double evaluate(Network* n, const Batch* batch) {
  load(n, batch);
  for (int l = 0; l < LAYERS; ++l) forward(n, l);
  return loss(n);
}

static void train(Network* n, Memory* memory, int trainers, int steps) {
  Simulation simulation = {.seed = 1}, other = {.seed = 2};
  Batch batch, test;
  next_batch(&other, &test);
  allocate(memory, n);
  for (int step = 1; step <= steps; ++step) {
    double mean = 0;
    memset(memory->gradients, 0, sizeof memory->gradients);
    for (int t = 0; t < trainers; ++t) {
      next_batch(&simulation, &batch);
      mean += evaluate(n, &batch) / trainers;
      for (int l = LAYERS - 1; l >= 0; --l) backward(n, l);
    }
    update(memory, step, trainers);
    if (step % EVALUATE_EVERY == 0) printf("step %d loss %.9g error %.9g\n", step, mean, evaluate(n, &test));
  }
}

int main(int count, char** words) {
  static Network network;
  static Memory memory;
  train(&network, &memory, count > 1 ? atoi(words[1]) : 1, count > 2 ? atoi(words[2]) : 100);
  return 0;
}
