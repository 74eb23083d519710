/* Functions that run the unsharded example transformer.c step by step, for bench/example_bench.cpp. */
#define main example_main
#include "apps/examples/transformer.c"
#undef main

int64_t plain_state_bytes(void);
void* plain_make(void);
double plain_step(void* model, int step, int parts);
void plain_free(void* model);

/* Bytes of weights, gradients and two moments, all fp32. */
int64_t plain_state_bytes(void) {
  Tensors weights;
  Tensor list[TENSORS];
  int64_t count = 0;
  list_tensors(&weights, list);
  for (int t = 0; t < TENSORS; ++t) count += size_of(&list[t]);
  return count * 4 * (int64_t)sizeof(float);
}

typedef struct {
  Model model;
  Memory memory;
} Plain;

void* plain_make(void) {
  Plain* p = calloc(1, sizeof(Plain));
  if (p == NULL) abort();
  allocate(&p->memory, &p->model);
  return p;
}

/* One step of train() in transformer.c, without its output. */
double plain_step(void* model, int step, int parts) {
  Plain* p = model;
  Model* m = &p->model;
  double loss = 0;
  memset(p->memory.gradients, 0, sizeof(float) * (size_t)p->memory.count);
  for (int part = 0; part < parts; ++part) {
    load_batch(m, (step - 1) * parts + part);
    for (int unit = 0; unit < UNITS; ++unit) forward(m, unit);
    for (int unit = UNITS - 1; unit >= 0; --unit) backward(m, unit);
    loss += m->loss / parts;
  }
  update(&p->memory, step, parts);
  return loss;
}

void plain_free(void* model) {
  Plain* p = model;
  free(p->memory.weights);
  free(p);
}
