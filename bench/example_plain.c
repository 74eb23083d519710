/* The example that knows nothing of ranks, step by step, for bench/example_bench.cpp. */
#define main example_main
#include "apps/examples/transformer.c"
#undef main

int64_t plain_state_bytes(void);
void* plain_make(void);
double plain_step(void* model, int step, int parts);
void plain_free(void* model);

/* Weights, gradients and two moments. */
int64_t plain_state_bytes(void) {
  Tensors weights;
  Tensor list[TENSORS];
  int64_t count = 0;
  list_tensors(&weights, list);
  for (int t = 0; t < TENSORS; ++t) count += size_of(&list[t]);
  return count * 4 * (int64_t)sizeof(float);
}

void* plain_make(void) {
  Model* m = calloc(1, sizeof(Model));
  if (m == NULL) abort();
  allocate(m);
  return m;
}

/* As train() goes, without its printing. */
double plain_step(void* model, int step, int parts) {
  Model* m = model;
  double loss = 0;
  memset(m->gradient_memory, 0, sizeof(float) * (size_t)m->count);
  for (int part = 0; part < parts; ++part) {
    load_batch(m, (step - 1) * parts + part);
    for (int unit = 0; unit < UNITS; ++unit) forward(m, unit);
    for (int unit = UNITS - 1; unit >= 0; --unit) backward(m, unit);
    loss += m->loss / parts;
  }
  update(m, step, parts);
  return loss;
}

void plain_free(void* model) {
  Model* m = model;
  free(m->memory);
  free(m);
}
