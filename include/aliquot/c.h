#pragma once
/* The C interface of Aliquot, for C and for languages that can call C.
 *
 * Status: Functions that can fail return ALIQUOT_DONE or an error status. aliquot_message() then describes the error.
 * Threads: A world and its engine belong to one rank. Only that rank's thread may use them.
 * Collective calls: Every rank must make the same calls on its engine in the same order.
 * Arguments: Strings and arrays are copied; a null `options` selects the defaults.
 * Functions of an engine behave as the C++ functions of the same name in aliquot/engine/engine.h, which documents them
 * in full.
 */

#include <aliquot/version.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/** Status of a call. A program should exit with the same number. */
enum {
  ALIQUOT_DONE = 0,
  ALIQUOT_USAGE = 1,       /* invalid argument, or a call that is not allowed at this point */
  ALIQUOT_UNAVAILABLE = 2, /* not possible on this machine: device missing, or not enough memory */
  ALIQUOT_FAULT = 3,       /* a rank failed, a collective timed out, or a system call failed */
  ALIQUOT_NOT_FINITE = 4,  /* gradients with infinity or NaN: see the option "max-skipped" */
  ALIQUOT_CHECKPOINT = 5   /* checkpoint missing, corrupt or invalid */
};

/** Message of the last call of this thread that failed, or "". Valid until the thread's next call. */
const char* aliquot_message(void);
/** Version of the library, such as "0.1.0". */
const char* aliquot_version(void);
/** Installs a handler for SIGSEGV and SIGBUS. If the model accesses a parameter outside of a scope, the handler prints
 * the parameter's name before the process ends. Intended for programs, not for libraries. */
int aliquot_install_fault_names(void);
/** Prints warnings to standard error, one per line. By default the library prints nothing. */
int aliquot_log_to_standard_error(void);

/* Options ---------------------------------------------------------------------------------------------------------- */

/* The options, with the form of their values. N is an integer (k, m and b at its end mean thousands, millions and
 * billions), X a real number, and BYTES a number of bytes such as 512MiB, 24GiB or 80GB. tests/capi/ compares this list
 * with the library.
 *
 * device auto|host|cuda
 *     Device to compute on; auto: a GPU if there is one. Default: auto.
 * world auto|threads|mpi|nccl
 *     How ranks communicate; auto: MPI under a launcher, else threads; NCCL if each rank has its own GPU. Default:
 *     auto.
 * threads N
 *     Compute threads per rank on hosts; default: cores of the node divided by its ranks.
 * timeout X
 *     Seconds after which a rank that waits for another one reports a failure. Default: 600.
 * nccl-channels N
 *     Number of thread blocks that NCCL uses for a collective; 0: NCCL decides. Default: 0.
 * nccl-copy-engines on|off
 *     NCCL gathers with copy engines, so that kernels can use all multiprocessors; needs NVLink. Default: off.
 * nccl-gather-communicator on|off
 *     Gathers have their own NCCL communicator and do not wait for reduces; off saves memory of the GPU. Default: on.
 * nccl-staging BYTES
 *     Maximum memory in which a rank adds data that NCCL does not add: 16-bit data, or all data with reproducible.
 *     Default: 64MiB.
 * zero-stage 0|1|2|3
 *     What is sharded: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too. Default: 3.
 * replicas N
 *     Hybrid sharding: number of copies of the model, each sharded over a group of contiguous ranks. Default: 1.
 * pipeline N
 *     Number of pipeline stages; each runs a part of the model, with an equal number of contiguous ranks. Default: 1.
 * pipeline-schedule gpipe|1f1b|interleaved|zero-bubble|auto
 *     Order of passes: all forward passes first (gpipe), alternately forward and backward (1f1b), 1f1b with several
 *     virtual stages (interleaved), 1f1b with backward passes in two parts (zero-bubble), or the fastest of these that
 *     fits, by simulation (auto). Default: 1f1b.
 * virtual-stages N
 *     Number of virtual stages of each pipeline stage, with interleaved, auto or an order from a file; 0: as in the
 *     file, 2 with interleaved, or chosen with auto, otherwise 1. Default: 0.
 * pipeline-cut N,N,...
 *     Number of consecutive uses of each virtual stage, in order; default: a cut with about equal times.
 * tensor N
 *     Number of ranks of a tensor group: contiguous ranks that divide each layer and read the same data. Default: 1.
 * accumulate N
 *     Micro-batches per step. Default: 1.
 * accumulate-into auto|full|shard
 *     Sum micro-batches in full gradients or in shards; default auto: full at ZeRO stages 0 and 1, shard at 2 and 3.
 * prefetch N
 *     How far gathers run ahead of compute, at ZeRO stage 3, as a number of uses. Default: 1.
 * keep-gathered N
 *     Number of uses at the end of forward whose units stay gathered for backward, at ZeRO stage 3. Default: 0.
 * gather-for auto|pass|step|N
 *     How long units stay gathered at ZeRO stage 3: one pass, the whole step, or the passes of N micro-batches; auto:
 *     the fastest that memory-budget allows, else pass. Default: auto.
 * recompute auto|none|block|N
 *     Blocks that recompute activations in backward instead of saving them: none, all blocks (block) or the first N of
 *     each pipeline stage; auto: as few as memory-budget requires. Default: auto.
 * gather auto|view|copy
 *     How ranks gather shards at ZeRO stage 3: copy them, or view them in shared memory (one host or GPU); auto: view
 *     if possible. Default: auto.
 * offload none|host|disk:DIR
 *     Where optimizer state is stored between updates: the device (none), host memory, or files in DIR. Default: none.
 * offload-parameters none|host|disk:DIR
 *     Where parameter shards are stored between uses, at ZeRO stage 3. Default: none.
 * update-in-backward on|off
 *     Update a unit as soon as its gradient is reduced; requires clip 0. Default: off.
 * reproducible on|off
 *     Give the same bits on every mesh of up to 8 ranks in a tensor group and powers of two, with the same
 *     global-batch. Default: off.
 * quantize none|weights|gradients|both
 *     What is sent in 8 bits: weights (in gathers, ZeRO stage 3), gradients (between nodes), both or none. Default:
 *     none.
 * max-skipped N
 *     Stop after N skipped steps in a row; a step is skipped if a gradient is not finite. Default: 0.
 * check-state on|off
 *     Find bits of parameters and optimizer state that change between updates, by digests of their blocks. Default:
 *     off.
 * replay-every auto|N
 *     Every N steps, each data-parallel rank computes a micro-batch and sums of other ranks again, to find ranks that
 *     compute wrong results. auto chooses N so that this takes at most 2 % of the time. Default: 0.
 * graph auto|on|off
 *     Capture forward and backward once and repeat them as a CUDA graph, to save CPU time; auto: only with one rank.
 *     Default: auto.
 * check on|off
 *     Detect writes outside of parameters and activations, and accesses outside of scopes; slower. Default: off.
 * memory-budget BYTES
 *     Maximum memory per rank; the engine then chooses options that fit and do not change results.
 * precision fp32|bf16|fp16
 *     Type of parameters in compute; default: fp32 on hosts, bf16 on GPUs.
 * gradients fp32|bf16
 *     Type in which gradients are accumulated. Default: fp32.
 * reduce-precision fp32|bf16
 *     Type in which ranks send gradients; default: that of gradients.
 * master split|fp32
 *     Master values of bf16 parameters: only the 16 missing bits (split) or fp32; results are the same. Default: split.
 * state fp32|bf16
 *     Type of optimizer moments. Default: fp32.
 * optimizer adamw|adam|adamw8bit|lion|sgd|muon
 *     The optimizer. Default: adamw.
 * lr X
 *     The learning rate.
 * betas X,Y
 *     Decay rates of the first and second moments.
 * eps X
 *     Added to the square root of the second moment.
 * weight-decay X
 *     Decoupled weight decay; tensors with one dimension are not decayed.
 * momentum X
 *     Momentum of sgd (default 0.9) and muon (default 0.95).
 * nesterov on|off
 *     Nesterov momentum for sgd (default off) and muon (default on).
 * muon-lr X
 *     Learning rate of matrices with muon; lr applies to other parameters. schedule scales both.
 * muon-products fp32|bf16
 *     Type of matrix products with muon (default fp32); bf16 uses the tensor cores of GPUs.
 * clip X
 *     Maximum global gradient norm; 0: no clipping. Default: 1.
 * seed N
 *     Seed of the initial weights and of stochastic rounding. Default: 1.
 */

/** Options by name and value, spelled as the flags of `aliquot train`: "zero-stage" "3", "memory-budget" "2GiB".
 * Differences from the command: "check" exists only here. "memory-budget" "0" and "max-skipped" "0" mean no limit here;
 * the command rejects them. An engine rejects options that its optimizer does not use, such as "eps" with lion; the
 * command ignores them. Several worlds and engines, on any threads, may read the same options once all values are
 * set. */
typedef struct aliquot_options aliquot_options;

int aliquot_options_create(aliquot_options** options);
/** Sets an option. Returns ALIQUOT_USAGE, and changes nothing, for an unknown name, a value of another form, and a
 * value out of range. The message names the option, the value and what is expected. Switches accept "on" and "off",
 * "true" and "false", "yes" and "no", "1" and "0". */
int aliquot_options_set(aliquot_options* options, const char* name, const char* value);
void aliquot_options_free(aliquot_options* options);

/* Worlds ----------------------------------------------------------------------------------------------------------- */

typedef struct aliquot_world aliquot_world;

/** Program of one rank. `world` is valid during the call. Return ALIQUOT_DONE, or the status of a call that failed; the
 * other ranks then stop too. */
typedef int (*aliquot_body)(aliquot_world* world, void* context);

/** Joins the world of the processes that mpirun or srun started. Without a launcher the world has one rank. */
int aliquot_world_from_environment(const aliquot_options* options, aliquot_world** world);
/** Creates the world of the ranks of an MPI communicator of the program, which may be a part of its ranks. Other ranks
 * need not call it. `communicator` is the Fortran handle, which MPI_Comm_c2f() returns; in C, call
 * aliquot_world_from_mpi() of <aliquot/mpi.h> with the MPI_Comm. Behaves as World::from_mpi() in C++. */
int aliquot_world_from_mpi_f(int communicator, const aliquot_options* options, aliquot_world** world);
/** Runs `body` on `rank_count` threads of this process, one per rank. Waits for all and returns the first error. */
int aliquot_world_threads(int rank_count, aliquot_body body, void* context, const aliquot_options* options);
/** Runs `body` on all ranks. Under mpirun or srun this process is one rank, and `rank_count` has no effect. Otherwise
 * the ranks are threads, as in aliquot_world_threads(). Intended for main(). */
int aliquot_world_run(int rank_count, aliquot_body body, void* context, const aliquot_options* options);
/** Frees a world from aliquot_world_from_environment() or aliquot_world_from_mpi_f(). Free its engines first, and
 * finalize MPI afterwards. */
void aliquot_world_free(aliquot_world* world);

int aliquot_rank(const aliquot_world* world);
int aliquot_rank_count(const aliquot_world* world);
/** Replaces each of `count` values by its sum over all ranks, for example losses. At most 512 values. Collective. */
int aliquot_sum(aliquot_world* world, double* values, int count);

/* The model -------------------------------------------------------------------------------------------------------- */

typedef struct aliquot_engine aliquot_engine;

/** Creates an engine. The world must outlive it. */
int aliquot_engine_create(aliquot_world* world, const aliquot_options* options, aliquot_engine** engine);
void aliquot_engine_free(aliquot_engine* engine);

/** Adds a unit: parameters that are gathered, reduced and updated together. Units are numbered from 0 in the order of
 * these calls. Forward uses them in that order, unless aliquot_declare_order() sets another. */
int aliquot_add_unit(aliquot_engine* engine, const char* name, int* unit);
/** Declares that the unit's gradient kernels overwrite the gradient memory. By default they add to it, and the engine
 * clears it first. */
int aliquot_assigns_gradients(aliquot_engine* engine, int unit);

/** Declaration of a parameter. Optional fields that are 0 select their default. */
typedef struct aliquot_parameter {
  const char* name; /* the full name is "UNIT.NAME" */
  int dimensions;
  const int64_t* shape;
  /* Address of the model's pointer to the values, such as a float**. Required. Set while the unit is open. */
  void* value;
  /* Address of the model's pointer to the gradient. The engine sets it in backward. May be null if frozen. */
  void* gradient;
  int frozen;      /* 1: no gradient and no update */
  int not_decayed; /* 1: no weight decay */
  float lr_scale;  /* multiplies the learning rate; default 1 */
  /* Size of one element of the values and of the gradient: 4 (default), or 2 for 16-bit types. */
  int value_bytes, gradient_bytes;
  float decay_scale; /* multiplies the weight decay; default 1 */
  int no_matrix;     /* 1: Muon does not orthogonalize it although it is a matrix; for embeddings and the last layer */
  /* The dimension that the ranks of a tensor group (option "tensor") divide: ALIQUOT_NOT_SPLIT (default),
   * ALIQUOT_SPLIT_ROWS, or ALIQUOT_SPLIT_COLUMNS. The model's pointers then lead to the slice of this rank. */
  int split;
  /* The lengths of the parts of this dimension, and the units in which the ranks divide each part, such as the rows of
   * an attention head. With 0 parts (default), the dimension is one part. Null part_units: units of 1. */
  int part_count;
  const int64_t *part_lengths, *part_units;
  int partial_gradient; /* 1: not split, and each rank of a tensor group computes a part of the gradient */
} aliquot_parameter;
enum { ALIQUOT_NOT_SPLIT = 0, ALIQUOT_SPLIT_ROWS = 1, ALIQUOT_SPLIT_COLUMNS = 2 };
int aliquot_add_parameter(aliquot_engine* engine, int unit, const aliquot_parameter* parameter);
/** Like aliquot_add_parameter(), for a model that stores one tensor of `count` layers in one array, and computes the
 * address of layer `index` from one base pointer: base + index * elements. While the unit is open, this expression is
 * the address of the parameter. `parameter->value` and `parameter->gradient` are the addresses of the base pointers.
 * Only the slice of the open unit is accessible. The same as slice() in C++ (aliquot/engine/run/memory/pointer_slot.h),
 * which states the conditions. */
int aliquot_add_slice(aliquot_engine* engine, int unit, const aliquot_parameter* parameter, int64_t index,
                      int64_t count);
/** Divides `count` units, such as heads, over the ranks of a tensor group, and sets `*first` and `*end` to the range
 * [first, end) of one rank. `tensor_rank` is its rank in the group: aliquot_rank() modulo the option "tensor". */
int aliquot_rank_range(int64_t count, int tensor_rank, int tensor, int64_t* first, int64_t* end);

/** Sets the order of forward. Use u gathers unit_counts[u] units together. `units` lists the units of use 0, then those
 * of use 1, and so on. `use_count` and each element of `unit_counts` are at least 1. */
int aliquot_declare_order(aliquot_engine* engine, int use_count, const int* unit_counts, const int* units);

/** A collective that the code of a use runs with aliquot_run_collective(). The ranks of a tensor group exchange a
 * matrix of `rows` rows with `row_elements` elements each. Let T be the number of ranks, and n = rows / T, rounded up.
 * Rank r owns n rows, from row r * n on, as far as they exist. The buffer must have space for n * T rows. */
typedef struct aliquot_collective {
  const char* name;
  int kind;       /* a kind of collective */
  int part;       /* ALIQUOT_FORWARD, ALIQUOT_BACKWARD or ALIQUOT_BACKWARD_WEIGHTS */
  int buffer;     /* the buffer that contains the matrix */
  int64_t offset; /* of the matrix in the buffer, in bytes; a multiple of 16 */
  int64_t rows, row_elements;
  int type;             /* of the elements */
  int not_in_recompute; /* 1: a recompute does not repeat it */
} aliquot_collective;
/** Kinds of collectives. SUM: each rank gets the sum over all ranks. GATHER: each rank gets the rows of all ranks.
 * SCATTER_SUM: each rank gets its own rows of the sum. */
enum { ALIQUOT_SUM = 0, ALIQUOT_GATHER = 1, ALIQUOT_SCATTER_SUM = 2 };
/** Buffers of a use: see aliquot_use_memory. A collective in OUTPUT or KEPT belongs to the forward. A collective in
 * GRADIENT, which is aliquot_use_memory.backward, belongs to the backward. */
enum { ALIQUOT_OUTPUT = 0, ALIQUOT_KEPT = 1, ALIQUOT_SCRATCH = 2, ALIQUOT_GRADIENT = 3 };
enum { ALIQUOT_FLOAT32 = 0, ALIQUOT_BFLOAT16 = 1, ALIQUOT_FLOAT16 = 2 };

/** Activation memory of one use, for one micro-batch. Sizes in bytes; 0 means no buffer. */
typedef struct aliquot_activations {
  int64_t output;                      /* output of the use, which is the input of the next use */
  int64_t kept;                        /* activations that forward saves and only the backward of this use reads */
  int64_t scratch;                     /* temporary memory while forward or backward of this use runs */
  int recomputable;                    /* 1: the kept activations can be recomputed from the input */
  int input_not_read, output_not_read; /* 1: backward of this use does not read its input, or its output */
  /* 1: backward can run in two parts, ALIQUOT_BACKWARD_INPUT and ALIQUOT_BACKWARD_WEIGHTS. Together they must compute
   * the same bits as one backward. */
  int splits_backward;
  int64_t weight_inputs; /* data that ALIQUOT_BACKWARD_INPUT writes for ALIQUOT_BACKWARD_WEIGHTS */
  /* The collectives of the use. The collectives of each part run in this order. */
  int collective_count;
  const aliquot_collective* collectives;
} aliquot_activations;

/** Addresses of the buffers of the open use. Null if the declared size is 0 or the buffer has been freed. Their
 * contents are undefined before the model writes them. */
typedef struct aliquot_use_memory {
  int use;
  void *input, *output, *kept, *scratch; /* input is the output of the previous use */
  void* backward;      /* gradients of activations; only in ALIQUOT_BACKWARD and ALIQUOT_BACKWARD_INPUT */
  int recomputed;      /* 1: `kept` is freed after forward, and recomputed before backward */
  void* weight_inputs; /* only in ALIQUOT_BACKWARD_INPUT and ALIQUOT_BACKWARD_WEIGHTS */
} aliquot_use_memory;

/** Repeats the forward of memory->use and thereby restores memory->kept. The engine calls it within the call that opens
 * the use's backward. Return ALIQUOT_DONE, or another status to abandon the step. */
typedef int (*aliquot_recompute)(void* context, const aliquot_use_memory* memory);

/** Declares the activation memory of all uses. The engine allocates it. `backward_bytes` is the size of one more
 * buffer, which exists from the first backward of a micro-batch to the last. The option "recompute" sets how many of
 * the recomputable uses of each pipeline stage are recomputed. `recompute` may be null if no use is recomputable.
 * `recompute` and `context` must outlive the engine. */
int aliquot_declare_activations(aliquot_engine* engine, int use_count, const aliquot_activations* uses,
                                int64_t backward_bytes, aliquot_recompute recompute, void* context);

/** Peak memory of this rank in bytes, by category. */
typedef struct aliquot_memory {
  int64_t parameters, gradients, optimizer, slots, communication, staging, activations;
  int64_t peak; /* peak of the total; less than the sum of the categories if these peak at different times */
} aliquot_memory;
/** The memory that the plan needs. Callable before aliquot_materialize(). */
int aliquot_planned_memory(aliquot_engine* engine, aliquot_memory* memory);
/** The memory that the rank has allocated so far. */
int aliquot_measured_memory(aliquot_engine* engine, aliquot_memory* memory);

/** Writes the initial values of elements [offset, offset + count) of the parameter to `values`. `parameter` is its full
 * name. An element must have the same value on every rank. Return ALIQUOT_DONE, or another status to stop. */
typedef int (*aliquot_initialize)(void* context, const char* parameter, int64_t offset, int64_t count, float* values);
/** Allocates memory and initializes the shards of this rank. Ends the declarations. */
int aliquot_materialize(aliquot_engine* engine, aliquot_initialize initialize, void* context);
/** Makes the engine use this cudaStream_t for kernels of the model. Only on GPUs, and only before materialization. The
 * stream must exist until the engine is destroyed. */
int aliquot_compute_on(aliquot_engine* engine, void* stream);

/* A step ----------------------------------------------------------------------------------------------------------- */

/** Runs every use of a step, with aliquot_next() or with aliquot_micro_batch() and aliquot_open(). Return ALIQUOT_DONE,
 * or another status to abandon the step. */
typedef int (*aliquot_passes)(void* context);
/** Calls `passes`, like Engine::run_passes() in C++: with the option "graph", a GPU captures the work of `passes` in
 * the second step, and repeats it in later steps without calling `passes`. See "Graphs" in docs/engine.md for what it
 * may do. Then call aliquot_step(). All ranks must use this function, or none. */
int aliquot_run_passes(aliquot_engine* engine, aliquot_passes passes, void* context);

/** Begins a micro-batch. A step has one or more. */
int aliquot_micro_batch(aliquot_engine* engine);

/** Open the next use, which must consist of this unit. Until aliquot_close(), the model's pointers point to the unit's
 * full parameters. One use can be open at a time. */
int aliquot_forward(aliquot_engine* engine, int unit);
int aliquot_backward(aliquot_engine* engine, int unit);
int aliquot_evaluate(aliquot_engine* engine, int unit);
int aliquot_close(aliquot_engine* engine);
/** Returns the addresses of the open use's buffers. */
int aliquot_memory_of_use(aliquot_engine* engine, aliquot_use_memory* memory);
/** Enqueues the next declared collective of the open use, or of the use that a recompute repeats. ALIQUOT_USAGE if its
 * name is not `name`. Without a tensor group, only compares the names. */
int aliquot_run_collective(aliquot_engine* engine, const char* name);

/** The kinds of use. The last two are the parts of a split backward, which only aliquot_next() opens. Between the two
 * parts, passes of other micro-batches may run, which overwrite `scratch`.
 * ALIQUOT_BACKWARD_INPUT computes the gradients of activations, and writes `weight_inputs`. The pointers to gradients
 * of parameters are invalid.
 * ALIQUOT_BACKWARD_WEIGHTS computes the gradients of parameters from `input`, `kept` and `weight_inputs`. The pointers
 * to values of parameters are invalid, and `output` and `backward` are null. */
enum {
  ALIQUOT_FORWARD = 0,
  ALIQUOT_BACKWARD = 1,
  ALIQUOT_EVALUATE = 2,
  ALIQUOT_BACKWARD_INPUT = 3,
  ALIQUOT_BACKWARD_WEIGHTS = 4
};
/** Opens the next use, which must consist of these units. `use` is ALIQUOT_FORWARD, ALIQUOT_BACKWARD or
 * ALIQUOT_EVALUATE. `unit_count` is at least 1. */
int aliquot_open(aliquot_engine* engine, int use, int unit_count, const int* units);

/** One use that the engine asks the model to run. */
typedef struct aliquot_work {
  int kind;                  /* a kind of use, or ALIQUOT_NO_WORK */
  int use;                   /* in the declared order */
  int micro_batch;           /* from 0 within the step */
  int unit_count;            /* of the units of the use */
  const int* units;          /* valid until the next call with this engine */
  aliquot_use_memory memory; /* buffers of the use, if activations were declared */
  int data_coordinate;       /* the data-parallel rank whose samples the model must use */
  int replayed;              /* 1 if the use repeats micro-batch 0 of that rank, for the option replay-every */
} aliquot_work;
enum { ALIQUOT_NO_WORK = -1 };
/** Opens the next use of the step, in the planned order of passes, as Engine::next() in C++. Close it with
 * aliquot_close() before the next call. After the last use, opens nothing and sets work->kind to ALIQUOT_NO_WORK: then
 * call aliquot_step(). Needed with a pipeline, and replaces aliquot_micro_batch() and aliquot_open() without one. */
int aliquot_next(aliquot_engine* engine, aliquot_work* work);
/** The same for an evaluation, between steps. The call after ALIQUOT_NO_WORK begins another evaluation. */
int aliquot_next_evaluation(aliquot_engine* engine, aliquot_work* work);
/** With the option replay-every, compares the loss of micro-batch 0 too, like Engine::compare_loss() in C++.
 * `replayed`: that of the work whose loss it is. */
int aliquot_compare_loss(aliquot_engine* engine, double loss, int replayed);
/** Replaces each value by its sum over the ranks of the last pipeline stage, on all ranks. Ignores the values of other
 * stages. At most 512 values. */
int aliquot_sum_losses(aliquot_engine* engine, int count, double* values);
/** Skips the next use, forward or backward, on this rank, like Engine::skip() in C++. `unit_count` is at least 1.
 * ALIQUOT_USAGE if another pipeline stage receives the result of the use. */
int aliquot_skip(aliquot_engine* engine, int unit_count, const int* units);
/** Deprecated: the same as aliquot_skip(). `unit_count` is at least 1. */
int aliquot_pass_over(aliquot_engine* engine, int unit_count, const int* units);
/** Closes the open use and abandons the step. This rank must next call aliquot_step(), without further micro-batches.
 * All ranks then skip the update. */
int aliquot_abandon(aliquot_engine* engine);

typedef struct aliquot_step_report {
  int64_t step;         /* from 1; skipped steps count */
  double gradient_norm; /* of the mean gradient over ranks and micro-batches, before clipping */
  double learning_rate;
  double loss_scale;            /* the scale that this step used */
  int skipped;                  /* 1: no update, because a gradient was not finite or a rank abandoned the step */
  int abandoned_by;             /* lowest rank that abandoned the step, or -1 */
  const char* first_not_finite; /* first parameter whose gradient was not finite, or ""; valid until the next step */
} aliquot_step_report;
/** Ends the step: computes the gradient norm, clips, updates, and makes the new parameters available. `report` may be
 * null. A skipped step also returns ALIQUOT_DONE: check report->skipped. If the option "max-skipped" is set and that
 * many steps in a row were skipped, returns ALIQUOT_NOT_FINITE, or ALIQUOT_FAULT if ranks abandoned the last one. */
int aliquot_step(aliquot_engine* engine, aliquot_step_report* report);

/** Sets the learning rate from the next step on. Must be the same on every rank. */
int aliquot_set_learning_rate(aliquot_engine* engine, double rate);
/** Returns the factor by which the model must multiply the loss of this step. 1 unless the model computes in fp16. */
int aliquot_loss_scale(aliquot_engine* engine, double* scale);
/** Returns the number of finished steps. Skipped steps count. */
int aliquot_step_count(aliquot_engine* engine, int64_t* steps);
/** Unfreezes or freezes the parameters whose full names begin with `prefix`. Call between steps. */
int aliquot_set_trainable(aliquot_engine* engine, const char* prefix, int trainable);

/* State: call these functions between steps ------------------------------------------------------------------------ */

/* Scalars: named values of the program that a checkpoint contains, such as the position in its data or the time of a
 * simulation. They must be equal on every rank. aliquot_save() saves those that were set before it. aliquot_load() and
 * aliquot_load_newest() remove all scalars, and set those of the checkpoint. The scalars of the program and the engine
 * together, with their names, may take at most 32 KiB. aliquot_save() returns an error if they take more. */

/** Sets a scalar to `count` values, at least 1, and replaces an earlier one of this name. ALIQUOT_USAGE if checkpoints
 * cannot contain a scalar of this name, or if it is the name of a scalar of the engine, such as update_count. */
int aliquot_set_scalar_integers(aliquot_engine* engine, const char* name, int64_t count, const int64_t* values);
int aliquot_set_scalar_reals(aliquot_engine* engine, const char* name, int64_t count, const double* values);
int aliquot_set_scalar_text(aliquot_engine* engine, const char* name, const char* text);
/** Gets a scalar. `capacity` is the number of elements of `values`. *count, unless `count` is null, becomes the number
 * of values of the scalar. ALIQUOT_USAGE if there is no scalar of this name and type, or if it has more values. */
int aliquot_scalar_integers(aliquot_engine* engine, const char* name, int64_t capacity, int64_t* values,
                            int64_t* count);
int aliquot_scalar_reals(aliquot_engine* engine, const char* name, int64_t capacity, double* values, int64_t* count);
/** *text is valid until the scalar is set or a checkpoint is loaded. */
int aliquot_scalar_text(aliquot_engine* engine, const char* name, const char** text);
/** Sets *present to 1 if there is a scalar of this name, of any type, and otherwise to 0. */
int aliquot_has_scalar(aliquot_engine* engine, const char* name, int* present);

/** Reads a full parameter as fp32 values, on every rank. `count` must be its number of elements. */
int aliquot_read(aliquot_engine* engine, const char* parameter, int64_t count, float* values);
/** Compares data that several ranks hold. If copies differ, returns ALIQUOT_FAULT on all ranks, and the message names
 * the unit and the ranks. */
int aliquot_check_copies(aliquot_engine* engine);
/** Saves a checkpoint to directory/step-STEP, then deletes all but the newest `keep` checkpoints. 0 keeps all. */
int aliquot_save(aliquot_engine* engine, const char* directory, int keep);
/** Loads the checkpoint at `path`, such as directory/step-STEP. */
int aliquot_load(aliquot_engine* engine, const char* path);
/** Loads the newest valid checkpoint in `directory`. Sets *found to 0 and loads nothing if the directory has no
 * checkpoint. Returns ALIQUOT_CHECKPOINT if none of its checkpoints is valid. `found` may be null. */
int aliquot_load_newest(aliquot_engine* engine, const char* directory, int* found);
/** Loads weights of another program, from a safetensors file or a directory of such files. */
int aliquot_load_weights(aliquot_engine* engine, const char* path);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
