#pragma once
/* Aliquot for C, and for whatever calls C: worlds, an engine, units and their parameters, a scope that is opened and closed.
 *
 * What can fail returns a status: ALIQUOT_DONE, or why not, and aliquot_message() then has the sentence. Handles belong to
 * one rank and are used from its own thread. Calls on an engine are collective: every rank makes the same ones in the same
 * order. Text is copied; a null `options` means all defaults. What a call does, and when it fails, is told at length where
 * C++ has it (aliquot/engine/engine.h); the names differ by their prefix alone.
 */

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/** What a call ends with: the exit code that a program should end with too. */
enum {
  ALIQUOT_DONE = 0,
  ALIQUOT_USAGE = 1,       /* a call or a value is wrong */
  ALIQUOT_UNAVAILABLE = 2, /* cannot be done here: no such device, does not fit */
  ALIQUOT_FAULT = 3,       /* a rank died, a collective timed out, a call of the system failed */
  ALIQUOT_NOT_FINITE = 4,
  ALIQUOT_CHECKPOINT = 5 /* absent, damaged or hostile */
};

/** One sentence about the last call of this thread that failed; valid until the thread's next call. */
const char* aliquot_message(void);
/** "0.1.0" */
const char* aliquot_version(void);
/** A fault at a parameter that is not whole prints its name before the process dies. For programs: it sets handlers. */
int aliquot_install_fault_names(void);
/** From then on what no call is left to tell goes to standard error, a line each; until then the library prints nothing. */
int aliquot_log_to_standard_error(void);

/* Options ------------------------------------------------------------------------------------------------------------- */

/** Names and values, spelled as the flags of `aliquot train`: "zero-stage" "3", "memory-budget" "2GiB". Differences from the
 * command: "check" is no flag. "memory-budget" "0" and "max-skipped" "0" mean no limit here, and the command refuses them.
 * An engine refuses a setting that its optimizer does not use, such as "eps" with lion; the command ignores it.
 * Any number of worlds and engines may read the options, on any thread, once they are set. */
typedef struct aliquot_options aliquot_options;

int aliquot_options_create(aliquot_options** options);
/** ALIQUOT_USAGE for a name that is not known, and the message lists those that are. Switches take "on" and "off", or
 * "true" and "false", "yes" and "no", "1" and "0". */
int aliquot_options_set(aliquot_options* options, const char* name, const char* value);
void aliquot_options_free(aliquot_options* options);

/* Worlds -------------------------------------------------------------------------------------------------------------- */

typedef struct aliquot_world aliquot_world;

/** What a rank does. It returns ALIQUOT_DONE or, to have all ranks leave, a status, as it got it from a call that failed. */
typedef int (*aliquot_body)(aliquot_world* world, void* context);

/** The world that mpirun or srun started this process into, or this process alone. */
int aliquot_world_from_environment(const aliquot_options* options, aliquot_world** world);
/** Runs `body` on ranks that are threads of this process; returns when all are done, with the first failure. */
int aliquot_world_threads(int rank_count, aliquot_body body, void* context, const aliquot_options* options);
/** The same, but under mpirun or srun this process is the one rank that it was started as. What a main() calls. */
int aliquot_world_run(int rank_count, aliquot_body body, void* context, const aliquot_options* options);
/** For a world from the environment, after its engines. */
void aliquot_world_free(aliquot_world* world);

int aliquot_rank(const aliquot_world* world);
int aliquot_rank_count(const aliquot_world* world);
/** Adds up `count` values, at most 512, over all ranks: losses, say. Collective. */
int aliquot_sum(aliquot_world* world, double* values, int count);

/* The model ----------------------------------------------------------------------------------------------------------- */

typedef struct aliquot_engine aliquot_engine;

/** The world must outlive it. */
int aliquot_engine_create(aliquot_world* world, const aliquot_options* options, aliquot_engine** engine);
void aliquot_engine_free(aliquot_engine* engine);

/** Numbered from 0, in the order of these calls, which is the order of use. */
int aliquot_add_unit(aliquot_engine* engine, const char* name, int* unit);
/** The unit's gradient kernels write what they are handed instead of adding to zeros. */
int aliquot_assigns_gradients(aliquot_engine* engine, int unit);

/** What is zero takes its default. */
typedef struct aliquot_parameter {
  const char* name; /* "UNIT." is put before it */
  int dimensions;
  const int64_t* shape;
  void* value; /* the address of the model's pointer (a float**, say), which is set while the unit is live; not null */
  void* gradient; /* likewise, live in backward; null only where it is frozen */
  int frozen;
  int not_decayed;
  float lr_scale;                  /* 0: 1 */
  int value_bytes, gradient_bytes; /* of one element that the pointers lead to: 4, or 2 for 16-bit types; 0: 4 */
  float decay_scale;               /* of the weight decay; 0: 1 */
  int no_matrix; /* muon does not take it whole though it has two dimensions: embeddings, a last layer */
} aliquot_parameter;
int aliquot_add_parameter(aliquot_engine* engine, int unit, const aliquot_parameter* parameter);

/** Use u is of unit_counts[u] units together, whose numbers stand one after the other in `units`. */
int aliquot_declare_order(aliquot_engine* engine, int use_count, const int* unit_counts, const int* units);

/** Of one use, for one micro-batch, in bytes; 0: none. */
typedef struct aliquot_activations {
  int64_t output;   /* its result, the next use's input: until the end of its own backward, and so of the next's */
  int64_t kept;     /* what its forward leaves for its backward alone */
  int64_t scratch;  /* while its code runs */
  int recomputable; /* what it keeps can be made again from its input */
  int input_not_read, output_not_read; /* by its backward: then they are gone by then, if nobody else reads them */
} aliquot_activations;

/** Where they lie while a use is open; null for what was declared to take nothing. Nothing is ever cleared. */
typedef struct aliquot_use_memory {
  int use;
  void *input, *output, *kept, *scratch; /* input is the output of the use before */
  void* backward;                        /* in backward alone */
  int recomputed;                        /* what forward leaves in `kept` is gone before backward, and made again */
} aliquot_use_memory;

/** Runs forward of memory->use once more, called from within the call that opens its backward; ALIQUOT_DONE, or another
 * status to give the step up. */
typedef int (*aliquot_recompute)(void* context, const aliquot_use_memory* memory);

/** As many as there are uses. The engine gives the memory; backward_bytes are there from a micro-batch's first backward to its
 * last. Of those that are recomputable, as many as the option "recompute" says are; `recompute` may be null if none is, and
 * must, as `context`, outlive the engine. */
int aliquot_declare_activations(aliquot_engine* engine, int use_count, const aliquot_activations* uses,
                                int64_t backward_bytes, aliquot_recompute recompute, void* context);

/** Bytes of this rank, by category. */
typedef struct aliquot_memory {
  int64_t parameters, gradients, optimizer, slots, communication, staging, activations;
  int64_t peak; /* of the sum, not the sum of the peaks */
} aliquot_memory;
/** What the engine will take, before anything is allocated; and what the rank's ledger has counted so far. */
int aliquot_planned_memory(aliquot_engine* engine, aliquot_memory* memory);
int aliquot_measured_memory(aliquot_engine* engine, aliquot_memory* memory);

/** Fills values[0 .. count) with elements [offset, offset + count) of the parameter, whose full name is given; the same for
 * an element on every rank. Returns ALIQUOT_DONE, or another status to give up. */
typedef int (*aliquot_initialize)(void* context, const char* parameter, int64_t offset, int64_t count, float* values);
int aliquot_materialize(aliquot_engine* engine, aliquot_initialize initialize, void* context);
/** On a GPU: the model's kernels run on this cudaStream_t. Before materialize. */
int aliquot_compute_on(aliquot_engine* engine, void* stream);

/* A step -------------------------------------------------------------------------------------------------------------- */

int aliquot_micro_batch(aliquot_engine* engine);

/** Open a unit: it is whole, at the model's own pointers, until aliquot_close(). One is open at a time. */
int aliquot_forward(aliquot_engine* engine, int unit);
int aliquot_backward(aliquot_engine* engine, int unit);
int aliquot_evaluate(aliquot_engine* engine, int unit);
int aliquot_close(aliquot_engine* engine);
/** Of what is open. */
int aliquot_memory_of_use(aliquot_engine* engine, aliquot_use_memory* memory);

enum { ALIQUOT_FORWARD = 0, ALIQUOT_BACKWARD = 1, ALIQUOT_EVALUATE = 2 };
/** Opens units that are used together. */
int aliquot_open(aliquot_engine* engine, int use, int unit_count, const int* units);
/** This rank does not run the next use, forward or backward. */
int aliquot_pass_over(aliquot_engine* engine, int unit_count, const int* units);
/** Closes what is open and gives the step up: the rank's next aliquot_step(), without further micro-batches, skips it on
 * all ranks. */
int aliquot_abandon(aliquot_engine* engine);

typedef struct aliquot_step_report {
  int64_t step;         /* from 1, skipped ones counted */
  double gradient_norm; /* before clipping, of the mean over ranks and micro-batches */
  double learning_rate;
  double loss_scale;
  int skipped;                  /* nothing was changed */
  int abandoned_by;             /* the first rank that did, or -1 */
  const char* first_not_finite; /* a parameter's name, "" for none; valid until the engine's next step */
} aliquot_step_report;
/** After the last micro-batch: norm, clip, update, publish. `report` may be null. A skipped step is ALIQUOT_DONE all the same: look at
 * the report, or let the option "max-skipped" make it ALIQUOT_NOT_FINITE, or ALIQUOT_FAULT where ranks abandoned it. */
int aliquot_step(aliquot_engine* engine, aliquot_step_report* report);

int aliquot_set_learning_rate(aliquot_engine* engine, double rate);
/** 1 but for fp16. */
int aliquot_loss_scale(aliquot_engine* engine, double* scale);
int aliquot_step_count(aliquot_engine* engine, int64_t* steps);
int aliquot_set_trainable(aliquot_engine* engine, const char* prefix, int trainable);

/* State --------------------------------------------------------------------------------------------------------------- */

/** A whole parameter in fp32, on every rank; `count` is its number of elements. Between steps, as all below. */
int aliquot_read(aliquot_engine* engine, const char* parameter, int64_t count, float* values);
/** Compares what several ranks hold of the same. ALIQUOT_FAULT, the same on all, with the unit and the rank that differs. */
int aliquot_check_copies(aliquot_engine* engine);
/** To directory/step-STEP; the newest `keep` checkpoints stay, all if it is 0. */
int aliquot_save(aliquot_engine* engine, const char* directory, int keep);
/** A checkpoint, by its own path. */
int aliquot_load(aliquot_engine* engine, const char* path);
/** The newest valid one of a directory; *found is 0 where it holds none. */
int aliquot_load_newest(aliquot_engine* engine, const char* directory, int* found);
/** Weights of another program: a safetensors file, or a folder of them. */
int aliquot_load_weights(aliquot_engine* engine, const char* path);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
