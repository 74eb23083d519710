/* GPT-2 in plain C, on one rank: trains on a short text, evaluates, and samples a line of text.
 *
 *   gpt2 [STEPS [PARTS]]      each step accumulates the gradients of PARTS micro-batches
 */
#include <stdlib.h>

#include "gpt2_model.h"

/* The weights, their gradients and the moments of AdamW, in one allocation. */
typedef struct {
  float *weights, *gradients, *mean, *square;
  int64_t count;
} Memory;

static int64_t size_of(const Tensor* t) { return t->layers * t->rows * t->columns; }

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
  }
}

static void initialize(Model* m) {
  Tensor weights[TENSORS];
  list_tensors(&m->weights, weights);
  for (int t = 0; t < TENSORS; ++t) {
    const int64_t count = weights[t].rows * weights[t].columns;
    for (int l = 0; l < weights[t].layers; ++l) {
      char unit[NAME_LENGTH], name[2 * NAME_LENGTH];
      name_unit(weights[t].unit + l, unit);
      snprintf(name, sizeof name, "%s.%s", unit, weights[t].name);
      for (int64_t i = 0; i < count; ++i) (*weights[t].at)[l * count + i] = initial(name, i);
    }
  }
}

/* Applies AdamW. Steps count from 1. The gradients are the sum over `parts` micro-batches. */
static void update(Memory* memory, int step, int parts) {
  const double rate = 0.002;
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

static void forward(Model* m) {
  for (int use = 0; use < USES; ++use) forward_use(m, use);
}

static void train_step(Model* m, Memory* memory, int step, int parts) {
  double loss = 0;
  memset(memory->gradients, 0, sizeof(float) * (size_t)memory->count);
  for (int part = 0; part < parts; ++part) {
    load_batch(m, (step - 1) * parts + part);
    forward(m);
    for (int use = USES - 1; use >= 0; --use) backward_use(m, use);
    loss += m->loss / parts;
  }
  update(memory, step, parts);
  printf("step %d loss %.17g\n", step, loss);
}

static void evaluate(Model* m, int step, int parts) {
  double loss = 0;
  for (int part = 0; part < parts; ++part) {
    load_batch(m, 1000000 + part);
    forward(m);
    loss += m->loss / parts;
  }
  printf("step %d evaluation %.17g\n", step, loss);
}

/* Continues the first tokens of a batch. */
static void sample(Model* m) {
  load_batch(m, 0);
  for (int place = LENGTH / 4; place < LENGTH; ++place) {
    forward(m);
    choose_token(m, place);
  }
  print_text(m);
}

int main(int count, char** words) {
  const int steps = count > 1 ? atoi(words[1]) : 100, parts = count > 2 ? atoi(words[2]) : 1;
  Model* m = calloc(1, sizeof(Model));
  Memory memory = {0};
  if (m == NULL) return 2;
  allocate(&memory, m);
  initialize(m);
  for (int step = 1; step <= steps; ++step) train_step(m, &memory, step, parts);
  evaluate(m, steps, parts);
  sample(m);
  free(memory.weights);
  free(m);
  return 0;
}
