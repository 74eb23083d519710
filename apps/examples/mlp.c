/* mlp.cpp in C. It computes the same bits through the C interface: mlp_c [RANKS [ZERO_STAGE [STEPS [FOLDER]]]], or
 * under mpirun. With FOLDER it resumes from the newest checkpoint there, if any, and saves one at the end. */
#include <aliquot/c.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, WIDTH = 32, BATCH = 16 };

typedef struct {
  float *weight, *weight_gradient, *bias, *bias_gradient;
} Layer;

typedef struct {
  Layer layers[LAYERS];
  float values[LAYERS + 1][BATCH * WIDTH], slopes[BATCH * WIDTH];
} Network;

static void forward(Network* n, int l) {
  const Layer* layer = &n->layers[l];
  for (int b = 0; b < BATCH; ++b) {
    for (int o = 0; o < WIDTH; ++o) {
      float sum = layer->bias[o];
      for (int i = 0; i < WIDTH; ++i) sum += layer->weight[o * WIDTH + i] * n->values[l][b * WIDTH + i];
      n->values[l + 1][b * WIDTH + o] = l + 1 < LAYERS && sum < 0 ? 0.1f * sum : sum;
    }
  }
}

static void backward(Network* n, int l) {
  const Layer* layer = &n->layers[l];
  float before[BATCH * WIDTH] = {0};
  for (int b = 0; b < BATCH; ++b) {
    for (int o = 0; o < WIDTH; ++o) {
      const float result = n->values[l + 1][b * WIDTH + o];
      const float slope = n->slopes[b * WIDTH + o] * (l + 1 < LAYERS && result < 0 ? 0.1f : 1.0f);
      layer->bias_gradient[o] += slope;
      for (int i = 0; i < WIDTH; ++i) {
        layer->weight_gradient[o * WIDTH + i] += slope * n->values[l][b * WIDTH + i];
        before[b * WIDTH + i] += slope * layer->weight[o * WIDTH + i];
      }
    }
  }
  memcpy(n->slopes, before, sizeof before);
}

static void load(Network* n, int64_t batch) {
  for (int b = 0; b < BATCH; ++b) {
    const uint32_t hash = ((uint32_t)(batch * BATCH + b) + 1) * 2654435761u;
    n->values[0][b * WIDTH] = (float)(hash >> 8) / 8388608.0f - 1.0f;
  }
}

static double loss(Network* n) {
  double sum = 0;
  memset(n->slopes, 0, sizeof n->slopes);
  for (int b = 0; b < BATCH; ++b) {
    const float x = n->values[0][b * WIDTH], miss = n->values[LAYERS][b * WIDTH] - (x * x * x - 0.5f * x);
    sum += miss * miss / BATCH;
    n->slopes[b * WIDTH] = 2 * miss / BATCH;
  }
  return sum;
}

/* The code below uses Aliquot. If a call fails, its rank returns the status, which ends all ranks; main() prints the
 * message. */

typedef struct {
  int ranks, steps;
  const char* folder;
  aliquot_options* options;
} Run;

/* Returns from the calling function if `call` fails. */
#define TRY(call)                                \
  do {                                           \
    const int status_ = (call);                  \
    if (status_ != ALIQUOT_DONE) return status_; \
  } while (0)

static int initial(void* context, const char* parameter, int64_t offset, int64_t count, float* values) {
  (void)context, (void)parameter;
  for (int64_t i = 0; i < count; ++i) values[i] = (float)((offset + i) * 7919 % 1001 - 500) / 2500.0f;
  return ALIQUOT_DONE;
}

static int declare(aliquot_engine* engine, Network* n) {
  const int64_t square[] = {WIDTH, WIDTH};
  for (int l = 0; l < LAYERS; ++l) {
    Layer* layer = &n->layers[l];
    const aliquot_parameter weight = {.name = "weight",
                                      .dimensions = 2,
                                      .shape = square,
                                      .value = &layer->weight,
                                      .gradient = &layer->weight_gradient};
    const aliquot_parameter bias = {.name = "bias",
                                    .dimensions = 1,
                                    .shape = square,
                                    .value = &layer->bias,
                                    .gradient = &layer->bias_gradient,
                                    .not_decayed = 1};
    char name[16];
    snprintf(name, sizeof name, "layer.%d", l);
    int unit;
    TRY(aliquot_add_unit(engine, name, &unit));
    TRY(aliquot_add_parameter(engine, unit, &weight));
    TRY(aliquot_add_parameter(engine, unit, &bias));
  }
  return aliquot_materialize(engine, initial, NULL);
}

static int train(aliquot_world* world, aliquot_engine* engine, Network* n, const Run* run) {
  int64_t done = 0;
  TRY(declare(engine, n));
  if (run->folder != NULL) TRY(aliquot_load_newest(engine, run->folder, NULL));
  TRY(aliquot_step_count(engine, &done));
  for (int64_t step = done + 1; step <= run->steps; ++step) {
    TRY(aliquot_micro_batch(engine));
    load(n, (step - 1) * aliquot_rank_count(world) + aliquot_rank(world));
    for (int l = 0; l < LAYERS; ++l) {
      TRY(aliquot_forward(engine, l));
      forward(n, l);
      TRY(aliquot_close(engine));
    }
    double mean = loss(n) / aliquot_rank_count(world);
    for (int l = LAYERS - 1; l >= 0; --l) {
      TRY(aliquot_backward(engine, l));
      backward(n, l);
      TRY(aliquot_close(engine));
    }
    TRY(aliquot_step(engine, NULL));
    TRY(aliquot_sum(world, &mean, 1));
    if (aliquot_rank(world) == 0 && step % 20 == 0) printf("step %lld loss %.17g\n", (long long)step, mean);
  }
  return run->folder != NULL ? aliquot_save(engine, run->folder, 1) : ALIQUOT_DONE;
}

/* Runs on each rank. */
static int body(aliquot_world* world, void* context) {
  const Run* run = context;
  Network* n = calloc(1, sizeof *n);
  aliquot_engine* engine = NULL;
  int status = aliquot_engine_create(world, run->options, &engine);
  if (status == ALIQUOT_DONE) status = train(world, engine, n, run);
  aliquot_engine_free(engine);
  free(n);
  return status;
}

static int set_up(Run* run, int count, char** words) {
  run->ranks = count > 1 ? atoi(words[1]) : 2;
  run->steps = count > 3 ? atoi(words[3]) : 100;
  run->folder = count > 4 ? words[4] : NULL;
  TRY(aliquot_options_create(&run->options));
  TRY(aliquot_options_set(run->options, "zero-stage", count > 2 ? words[2] : "3"));
  TRY(aliquot_options_set(run->options, "max-skipped", "1"));
  return aliquot_options_set(run->options, "lr", "0.01");
}

int main(int count, char** words) {
  Run run = {0};
  int status = set_up(&run, count, words);
  if (status == ALIQUOT_DONE) status = aliquot_world_run(run.ranks, body, &run, run.options);
  if (status != ALIQUOT_DONE) fprintf(stderr, "mlp_c: %s\n", aliquot_message());
  aliquot_options_free(run.options);
  return status;
}
