/* A small transformer in plain C, on one rank. Weights, gradients and optimizer state are in one allocation.
 *
 *   transformer [STEPS [PARTS]]      each step accumulates the gradients of PARTS micro-batches
 */
#include <stdio.h>
#include <stdlib.h>

#include "transformer_kernels.h"

/* The weights, their gradients and the moments of AdamW, in one allocation. */
typedef struct {
  float *weights, *gradients, *mean, *square;
  int64_t count;
} Memory;

static int64_t size_of(const Tensor* t) { return t->rows * (t->columns > 0 ? t->columns : 1); }

static void allocate(Memory* memory, Model* m) {
  Tensor weights[TENSORS], gradients[TENSORS];
  list_tensors(&m->weights, weights);
  list_tensors(&m->gradients, gradients);
  for (int t = 0; t < TENSORS; ++t) memory->count += size_of(&weights[t]);
  memory->weights = calloc((size_t)memory->count * 4, sizeof(float));
  if (memory->weights == NULL) exit(2);
  memory->gradients = memory->weights + memory->count;
  memory->mean = memory->gradients + memory->count;
  memory->square = memory->mean + memory->count;
  int64_t offset = 0;
  for (int t = 0; t < TENSORS; offset += size_of(&weights[t++])) {
    *weights[t].at = memory->weights + offset;
    *gradients[t].at = memory->gradients + offset;
    for (int64_t i = 0; i < size_of(&weights[t]); ++i) (*weights[t].at)[i] = initial(&weights[t], t, i);
  }
}

/* Applies AdamW. Steps count from 1. The gradients are the sum over `parts` micro-batches. */
static void update(Memory* memory, int step, int parts) {
  const double rate = 0.003;
  const float slope = (float)(rate / (1 - pow(0.9, step))), decay = (float)(rate * 0.1);
  const float inverse_root = (float)(1 / sqrt(1 - pow(0.95, step))), of_gradient = 1.0f / (float)parts;
  for (int64_t i = 0; i < memory->count; ++i) {
    const float g = memory->gradients[i] * of_gradient;
    memory->mean[i] = 0.9f * memory->mean[i] + 0.1f * g;
    memory->square[i] = 0.95f * memory->square[i] + 0.05f * (g * g);
    const float direction = memory->mean[i] / (sqrtf(memory->square[i]) * inverse_root + 1e-8f);
    memory->weights[i] = memory->weights[i] * (1.0f - decay) - slope * direction;
  }
}

static void train(Model* m, int steps, int parts) {
  Memory memory = {0};
  allocate(&memory, m);
  for (int step = 1; step <= steps; ++step) {
    double loss = 0;
    memset(memory.gradients, 0, sizeof(float) * (size_t)memory.count);
    for (int part = 0; part < parts; ++part) {
      load_batch(m, (step - 1) * parts + part);
      for (int unit = 0; unit < UNITS; ++unit) forward(m, unit);
      for (int unit = UNITS - 1; unit >= 0; --unit) backward(m, unit);
      loss += m->loss / parts;
    }
    update(&memory, step, parts);
    printf("step %d loss %.17g\n", step, loss);
  }
  free(memory.weights);
}

int main(int count, char** words) {
  Model* m = calloc(1, sizeof(Model));
  if (m == NULL) return 2;
  train(m, count > 1 ? atoi(words[1]) : 20, count > 2 ? atoi(words[2]) : 1);
  free(m);
  return 0;
}
