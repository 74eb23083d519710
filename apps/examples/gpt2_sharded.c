/* gpt2.c, sharded with Aliquot through its C interface. The model is unchanged.
 *
 *   gpt2_sharded_c [RANKS [ZERO_STAGE [STEPS [FOLDER]]]]      or under mpirun
 *
 * With FOLDER it continues from the newest checkpoint there, if any, and saves one at the end.
 */
#include <aliquot/c.h>
#include <stdlib.h>

#include "gpt2_model.h"

typedef struct {
  int ranks, steps;
  const char* folder;
  aliquot_options* options;
} Run;

/* What the functions of a rank need. */
typedef struct {
  aliquot_world* world;
  aliquot_engine* engine;
  Model* model;
} Rank;

/* Returns from the calling function if `call` fails. */
#define TRY(call)                                \
  do {                                           \
    const int status_ = (call);                  \
    if (status_ != ALIQUOT_DONE) return status_; \
  } while (0)

/* Lists the units of a use, and returns their number. The first and the last use share the unit of the table of
 * tokens. */
static int units_of(int use, int units[2]) {
  units[0] = use == 0 ? PLACE_UNIT : use <= LAYERS ? LAYER_UNIT + use - 1 : LAST_UNIT;
  units[1] = TOKEN_UNIT;
  return use == 0 || use > LAYERS ? 2 : 1;
}

static int declare_tensor(aliquot_engine* engine, const Tensor* weight, const Tensor* gradient) {
  const int64_t shape[] = {weight->rows, weight->columns};
  const aliquot_parameter parameter = {.name = weight->name,
                                       .dimensions = weight->columns > 1 ? 2 : 1,
                                       .shape = shape,
                                       .value = weight->at,
                                       .gradient = gradient->at};
  for (int l = 0; l < weight->layers; ++l)
    TRY(aliquot_add_slice(engine, weight->unit + l, &parameter, l, weight->layers));
  return ALIQUOT_DONE;
}

static int initialize(void* context, const char* parameter, int64_t offset, int64_t count, float* values) {
  (void)context;
  for (int64_t i = 0; i < count; ++i) values[i] = initial(parameter, offset + i);
  return ALIQUOT_DONE;
}

static int declare(aliquot_engine* engine, Model* m) {
  Tensor weights[TENSORS], gradients[TENSORS];
  list_tensors(&m->weights, weights);
  list_tensors(&m->gradients, gradients);
  for (int unit = 0; unit < UNITS; ++unit) {
    char name[NAME_LENGTH];
    name_unit(unit, name);
    TRY(aliquot_add_unit(engine, name, NULL));
  }
  for (int t = 0; t < TENSORS; ++t) TRY(declare_tensor(engine, &weights[t], &gradients[t]));
  int counts[USES], order[2 * USES], listed = 0;
  for (int use = 0; use < USES; ++use) listed += counts[use] = units_of(use, order + listed);
  TRY(aliquot_declare_order(engine, USES, counts, order));
  return aliquot_materialize(engine, initialize, NULL);
}

/* Opens a use: `kind` is ALIQUOT_FORWARD, ALIQUOT_BACKWARD or ALIQUOT_EVALUATE. */
static int open_use(const Rank* rank, int kind, int use) {
  int units[2];
  const int count = units_of(use, units);
  return aliquot_open(rank->engine, kind, count, units);
}

/* The forward of training (ALIQUOT_FORWARD), and of evaluation and sampling (ALIQUOT_EVALUATE). */
static int forward(const Rank* rank, int kind) {
  for (int use = 0; use < USES; ++use) {
    TRY(open_use(rank, kind, use));
    forward_use(rank->model, use);
    TRY(aliquot_close(rank->engine));
  }
  return ALIQUOT_DONE;
}

static int print_mean_loss(const Rank* rank, int64_t step, const char* what) {
  double loss = rank->model->loss / aliquot_rank_count(rank->world);
  TRY(aliquot_sum(rank->world, &loss, 1));
  if (aliquot_rank(rank->world) == 0) printf("step %lld %s %.17g\n", (long long)step, what, loss);
  return ALIQUOT_DONE;
}

static int train_step(const Rank* rank, int64_t step) {
  aliquot_step_report report;
  TRY(aliquot_micro_batch(rank->engine));
  load_batch(rank->model, (int)(step - 1) * aliquot_rank_count(rank->world) + aliquot_rank(rank->world));
  TRY(forward(rank, ALIQUOT_FORWARD));
  for (int use = USES - 1; use >= 0; --use) {
    TRY(open_use(rank, ALIQUOT_BACKWARD, use));
    backward_use(rank->model, use);
    TRY(aliquot_close(rank->engine));
  }
  TRY(aliquot_step(rank->engine, &report));
  if (report.skipped && aliquot_rank(rank->world) == 0) printf("step %lld was skipped\n", (long long)step);
  return print_mean_loss(rank, step, "loss");
}

static int evaluate(const Rank* rank, int64_t step) {
  load_batch(rank->model, 1000000 + aliquot_rank(rank->world));
  TRY(forward(rank, ALIQUOT_EVALUATE));
  return print_mean_loss(rank, step, "evaluation");
}

/* Every rank must run the passes, because each rank has a part of the weights. All ranks choose the same tokens. */
static int sample(const Rank* rank) {
  load_batch(rank->model, 0);
  for (int place = LENGTH / 4; place < LENGTH; ++place) {
    TRY(forward(rank, ALIQUOT_EVALUATE));
    choose_token(rank->model, place);
  }
  if (aliquot_rank(rank->world) == 0) print_text(rank->model);
  return ALIQUOT_DONE;
}

static int train(const Rank* rank, const Run* run) {
  int64_t done = 0;
  TRY(declare(rank->engine, rank->model));
  if (run->folder != NULL) TRY(aliquot_load_newest(rank->engine, run->folder, NULL));
  TRY(aliquot_step_count(rank->engine, &done));
  for (int64_t step = done + 1; step <= run->steps; ++step) TRY(train_step(rank, step));
  TRY(evaluate(rank, run->steps));
  TRY(sample(rank));
  return run->folder != NULL ? aliquot_save(rank->engine, run->folder, 1) : ALIQUOT_DONE;
}

/* Runs on each rank. */
static int body(aliquot_world* world, void* context) {
  const Run* run = context;
  Rank rank = {world, NULL, calloc(1, sizeof(Model))};
  int status = aliquot_engine_create(world, run->options, &rank.engine);
  if (status == ALIQUOT_DONE) status = train(&rank, run);
  aliquot_engine_free(rank.engine);
  free(rank.model);
  return status;
}

static int set_up(Run* run, int count, char** words) {
  run->ranks = count > 1 ? atoi(words[1]) : 2;
  run->steps = count > 3 ? atoi(words[3]) : 100;
  run->folder = count > 4 ? words[4] : NULL;
  TRY(aliquot_install_fault_names());
  TRY(aliquot_options_create(&run->options));
  TRY(aliquot_options_set(run->options, "zero-stage", count > 2 ? words[2] : "3"));
  TRY(aliquot_options_set(run->options, "clip", "0"));
  return aliquot_options_set(run->options, "lr", "0.002");
}

int main(int count, char** words) {
  Run run = {0};
  int status = set_up(&run, count, words);
  if (status == ALIQUOT_DONE) status = aliquot_world_run(run.ranks, body, &run, run.options);
  if (status != ALIQUOT_DONE) fprintf(stderr, "gpt2_sharded_c: %s\n", aliquot_message());
  aliquot_options_free(run.options);
  return status;
}
