#pragma once
/* The model of transformer_cuda.cu and transformer_cuda_sharded.cu: transformer_kernels.h in plain CUDA. Kernels use
 * one thread per element and run on the model's stream. They are written to be readable, not fast.
 */
#include <cmath>
#include <cstdint>
#include <cstring>
#include <cuda_runtime.h>
#include <stdexcept>
#include <type_traits>

enum {
  VOCABULARY = 64,
  WIDTH = 64,
  LAYERS = 4,
  HEADS = 4,
  HEAD = WIDTH / HEADS,
  HIDDEN = 4 * WIDTH,
  LENGTH = 32,
  BATCH = 4,
  TOKENS = BATCH * LENGTH,
  UNITS = LAYERS + 2,
  TENSORS = 5 + 12 * LAYERS,
  THREADS = 128
};

struct Block {
  float *norm1, *shift1, *qkv, *qkv_bias, *project, *project_bias, *norm2, *shift2, *up, *up_bias, *down, *down_bias;
};

/* Device pointers to all tensors of the weights, or of the gradients. */
struct Tensors {
  float *token_table, *place_table;
  Block block[LAYERS];
  float *norm, *shift, *head;
};

/* The saved activations of one block. */
struct Saved {
  float in[TOKENS * WIDTH], normed1[TOKENS * WIDTH], scale1[TOKENS], qkv[TOKENS * 3 * WIDTH];
  float attention[BATCH * HEADS * LENGTH * LENGTH], attended[TOKENS * WIDTH], middle[TOKENS * WIDTH];
  float normed2[TOKENS * WIDTH], scale2[TOKENS], hidden[TOKENS * HIDDEN], active[TOKENS * HIDDEN];
};

/* Activations and data, in GPU memory. The host must not access them. */
struct Values {
  Saved saved[LAYERS];
  float x[TOKENS * WIDTH], dx[TOKENS * WIDTH], normed[TOKENS * WIDTH], scale[TOKENS],
      probabilities[TOKENS * VOCABULARY];
  float y[TOKENS * WIDTH], dy[TOKENS * WIDTH], wide[TOKENS * HIDDEN],
      dscore[BATCH * HEADS * LENGTH * LENGTH]; /* scratch */
  int tokens[TOKENS], targets[TOKENS];
  double losses[TOKENS];
};

static void check(cudaError_t result) {
  if (result != cudaSuccess) throw std::runtime_error(cudaGetErrorString(result));
}

struct Model {
  Tensors weights, gradients;
  Values* values = nullptr;
  cudaStream_t stream = nullptr;

  Model() {
    check(cudaMalloc((void**)&values, sizeof(Values)));
    check(cudaStreamCreate(&stream));
  }
  ~Model() {
    cudaFree(values);
    cudaStreamDestroy(stream);
  }
};

/* Tensors ---------------------------------------------------------------------------------------------------------- */

struct Tensor {
  int unit;
  const char* name;
  int64_t rows, columns; /* columns is 0 for a vector */
  float** at;
};

static void list_tensors(Tensors* of, Tensor list[TENSORS]) {
  const Tensor tables[] = {{0, "tokens", VOCABULARY, WIDTH, &of->token_table},
                           {0, "places", LENGTH, WIDTH, &of->place_table}};
  memcpy(list, tables, sizeof tables);
  for (int l = 0; l < LAYERS; ++l) {
    Block* b = &of->block[l];
    const Tensor block[] = {
        {l + 1, "norm1", WIDTH, 0, &b->norm1},         {l + 1, "shift1", WIDTH, 0, &b->shift1},
        {l + 1, "qkv", 3 * WIDTH, WIDTH, &b->qkv},     {l + 1, "qkv_bias", 3 * WIDTH, 0, &b->qkv_bias},
        {l + 1, "project", WIDTH, WIDTH, &b->project}, {l + 1, "project_bias", WIDTH, 0, &b->project_bias},
        {l + 1, "norm2", WIDTH, 0, &b->norm2},         {l + 1, "shift2", WIDTH, 0, &b->shift2},
        {l + 1, "up", HIDDEN, WIDTH, &b->up},          {l + 1, "up_bias", HIDDEN, 0, &b->up_bias},
        {l + 1, "down", WIDTH, HIDDEN, &b->down},      {l + 1, "down_bias", WIDTH, 0, &b->down_bias}};
    memcpy(list + 2 + 12 * l, block, sizeof block);
  }
  const Tensor last[] = {{LAYERS + 1, "norm", WIDTH, 0, &of->norm},
                         {LAYERS + 1, "shift", WIDTH, 0, &of->shift},
                         {LAYERS + 1, "head", VOCABULARY, WIDTH, &of->head}};
  memcpy(list + TENSORS - 3, last, sizeof last);
}

/* Initial value of element i of tensor `tensor`: 1 for gains, 0 for other vectors, pseudo-random for matrices. */
static float initial(const Tensor& t, int tensor, int64_t i) {
  if (t.columns == 0) return strncmp(t.name, "norm", 4) == 0 ? 1.0f : 0.0f;
  uint64_t h = ((uint64_t)tensor << 32) + (uint64_t)i + 1;
  for (int round = 0; round < 3; ++round) h = (h ^ (h >> 29)) * 0xBF58476D1CE4E5B9u;
  return ((float)(h >> 40) / 16777216.0f - 0.5f) * 0.12f;
}

/* Kernels: backward kernels add to dw and db, and overwrite dx unless a comment says otherwise --------------------- */

/* Launches a kernel with one thread for each of `count` elements, on the model's stream. */
template <typename... Arguments>
static void each(const Model* m, int64_t count, void (*kernel)(Arguments...), std::type_identity_t<Arguments>... with) {
  const int blocks = (int)((count + THREADS - 1) / THREADS);
  kernel<<<blocks, THREADS, 0, m->stream>>>(with...);
  check(cudaGetLastError());
}

__device__ static int element() { return (int)(blockIdx.x * THREADS + threadIdx.x); }

__global__ static void linear(float* y, const float* x, const float* w, const float* b, int in, int out) {
  const int at = element(), t = at / out, o = at % out;
  if (t >= TOKENS) return;
  float sum = b != nullptr ? b[o] : 0.0f;
  for (int i = 0; i < in; ++i) sum += w[o * in + i] * x[t * in + i];
  y[at] = sum;
}

__global__ static void linear_inputs(float* dx, const float* dy, const float* w, int in, int out) {
  const int at = element(), t = at / in, i = at % in;
  if (t >= TOKENS) return;
  float sum = 0;
  for (int o = 0; o < out; ++o) sum += dy[t * out + o] * w[o * in + i];
  dx[at] = sum;
}

__global__ static void linear_weights(float* dw, float* db, const float* dy, const float* x, int in, int out) {
  const int at = element(), o = at / in, i = at % in;
  if (o >= out) return;
  float sum = dw[at];
  for (int t = 0; t < TOKENS; ++t) sum += dy[t * out + o] * x[t * in + i];
  dw[at] = sum;
  for (int t = 0; i == 0 && db != nullptr && t < TOKENS; ++t) db[o] += dy[t * out + o];
}

/* Layer norm: `normed` is x with mean 0 and standard deviation 1; y = normed * gain + shift. */
__global__ static void normalize(float* y, float* normed, float* scale, const float* x, const float* gain,
                                 const float* shift) {
  const int t = element();
  if (t >= TOKENS) return;
  float mean = 0, variance = 0;
  for (int c = 0; c < WIDTH; ++c) mean += x[t * WIDTH + c] / (float)WIDTH;
  for (int c = 0; c < WIDTH; ++c) variance += (x[t * WIDTH + c] - mean) * (x[t * WIDTH + c] - mean) / (float)WIDTH;
  scale[t] = 1.0f / sqrtf(variance + 1e-5f);
  for (int c = 0; c < WIDTH; ++c) {
    normed[t * WIDTH + c] = (x[t * WIDTH + c] - mean) * scale[t];
    y[t * WIDTH + c] = normed[t * WIDTH + c] * gain[c] + shift[c];
  }
}

__global__ static void scale_and_shift(float* y, const float* normed, const float* gain, const float* shift) {
  const int i = element();
  if (i < TOKENS * WIDTH) y[i] = normed[i] * gain[i % WIDTH] + shift[i % WIDTH];
}

/* Adds to dx, unlike the other functions. */
__global__ static void normalize_inputs(float* dx, const float* dy, const float* normed, const float* scale,
                                        const float* gain) {
  const int t = element();
  if (t >= TOKENS) return;
  const float *d = dy + t * WIDTH, *n = normed + t * WIDTH;
  float mean = 0, along = 0;
  for (int c = 0; c < WIDTH; ++c) {
    mean += d[c] * gain[c] / (float)WIDTH;
    along += d[c] * gain[c] * n[c] / (float)WIDTH;
  }
  for (int c = 0; c < WIDTH; ++c) dx[t * WIDTH + c] += scale[t] * (d[c] * gain[c] - mean - n[c] * along);
}

__global__ static void normalize_weights(float* dgain, float* dshift, const float* dy, const float* normed) {
  const int c = element();
  for (int t = 0; c < WIDTH && t < TOKENS; ++t) {
    dgain[c] += dy[t * WIDTH + c] * normed[t * WIDTH + c];
    dshift[c] += dy[t * WIDTH + c];
  }
}

__global__ static void add(float* y, const float* x) {
  const int i = element();
  if (i < TOKENS * WIDTH) y[i] += x[i];
}

__global__ static void activate(float* active, const float* hidden) {
  const int i = element();
  if (i < TOKENS * HIDDEN) active[i] = hidden[i] > 0 ? hidden[i] * hidden[i] : 0.0f;
}

__global__ static void activate_inputs(float* d, const float* hidden) {
  const int i = element();
  if (i < TOKENS * HIDDEN) d[i] *= hidden[i] > 0 ? 2 * hidden[i] : 0.0f;
}

/* The index of the query (part 0), key (1) or value (2) of token t in sequence b, head h. */
__device__ static int qkv_at(int b, int t, int part, int h) { return ((b * LENGTH + t) * 3 + part) * WIDTH + h * HEAD; }

__global__ static void attend(float* attended, float* attention, const float* qkv) {
  const int b = element() / LENGTH / HEADS, h = element() / LENGTH % HEADS, t = element() % LENGTH;
  if (b >= BATCH) return;
  float *of = attention + element() * LENGTH, *out = attended + (b * LENGTH + t) * WIDTH + h * HEAD;
  float largest = -1e30f, sum = 0;
  for (int s = 0; s <= t; ++s) {
    of[s] = 0;
    for (int c = 0; c < HEAD; ++c) of[s] += qkv[qkv_at(b, t, 0, h) + c] * qkv[qkv_at(b, s, 1, h) + c];
    of[s] /= sqrtf(HEAD);
    if (of[s] > largest) largest = of[s];
  }
  for (int s = 0; s <= t; ++s) sum += of[s] = expf(of[s] - largest);
  for (int c = 0; c < HEAD; ++c) out[c] = 0;
  for (int s = 0; s <= t; ++s) {
    of[s] /= sum;
    for (int c = 0; c < HEAD; ++c) out[c] += of[s] * qkv[qkv_at(b, s, 2, h) + c];
  }
}

/* Computes the gradients of the queries, and those of the scores for attend_keys(). */
__global__ static void attend_queries(float* dqkv, float* dscore, const float* dattended, const float* attention,
                                      const float* qkv) {
  const int b = element() / LENGTH / HEADS, h = element() / LENGTH % HEADS, t = element() % LENGTH;
  if (b >= BATCH) return;
  const float *of = attention + element() * LENGTH, *d = dattended + (b * LENGTH + t) * WIDTH + h * HEAD;
  float *to = dqkv + qkv_at(b, t, 0, h), *slope = dscore + element() * LENGTH, along = 0;
  for (int s = 0; s <= t; ++s) {
    slope[s] = 0;
    for (int c = 0; c < HEAD; ++c) slope[s] += d[c] * qkv[qkv_at(b, s, 2, h) + c];
    along += of[s] * slope[s];
  }
  for (int c = 0; c < HEAD; ++c) to[c] = 0;
  for (int s = 0; s <= t; ++s) {
    slope[s] = of[s] * (slope[s] - along) / sqrtf(HEAD);
    for (int c = 0; c < HEAD; ++c) to[c] += slope[s] * qkv[qkv_at(b, s, 1, h) + c];
  }
}

/* Computes the gradients of the keys and values of token s: sums over token s and all later tokens. */
__global__ static void attend_keys(float* dqkv, const float* dscore, const float* dattended, const float* attention,
                                   const float* qkv) {
  const int bh = element() / LENGTH, b = bh / HEADS, h = bh % HEADS, s = element() % LENGTH;
  if (b >= BATCH) return;
  float *key = dqkv + qkv_at(b, s, 1, h), *value = dqkv + qkv_at(b, s, 2, h);
  for (int c = 0; c < HEAD; ++c) key[c] = value[c] = 0;
  for (int t = s; t < LENGTH; ++t) {
    const int pair = (bh * LENGTH + t) * LENGTH + s;
    for (int c = 0; c < HEAD; ++c) {
      key[c] += dscore[pair] * qkv[qkv_at(b, t, 0, h) + c];
      value[c] += attention[pair] * dattended[(b * LENGTH + t) * WIDTH + h * HEAD + c];
    }
  }
}

__global__ static void look_up(float* x, const float* token_table, const float* place_table, const int* tokens) {
  const int i = element(), token = i / WIDTH, c = i % WIDTH;
  if (token < TOKENS) x[i] = token_table[tokens[token] * WIDTH + c] + place_table[token % LENGTH * WIDTH + c];
}

__global__ static void look_up_tokens(float* dtable, const float* dx, const int* tokens) {
  const int at = element(), row = at / WIDTH, c = at % WIDTH;
  for (int t = 0; row < VOCABULARY && t < TOKENS; ++t) {
    if (tokens[t] == row) dtable[at] += dx[t * WIDTH + c];
  }
}

__global__ static void look_up_places(float* dtable, const float* dx) {
  const int at = element(), row = at / WIDTH, c = at % WIDTH;
  for (int t = row; row < LENGTH && t < TOKENS; t += LENGTH) dtable[at] += dx[t * WIDTH + c];
}

__global__ static void compare(float* probabilities, double* losses, const int* targets) {
  const int t = element();
  if (t >= TOKENS) return;
  float *of = probabilities + t * VOCABULARY, largest = of[0], sum = 0;
  for (int v = 1; v < VOCABULARY; ++v) largest = of[v] > largest ? of[v] : largest;
  for (int v = 0; v < VOCABULARY; ++v) sum += of[v] = expf(of[v] - largest);
  for (int v = 0; v < VOCABULARY; ++v) of[v] /= sum;
  losses[t] = -log((double)of[targets[t]]) / (double)TOKENS;
}

__global__ static void compare_inputs(float* probabilities, const int* targets) {
  const int i = element(), t = i / VOCABULARY, v = i % VOCABULARY;
  if (t < TOKENS) probabilities[i] = (probabilities[i] - (targets[t] == v ? 1.0f : 0.0f)) / (float)TOKENS;
}

/* Makes batch number `batch`. The tokens of a sequence increase by a constant stride. */
__global__ static void make_batch(int* tokens, int* targets, int batch) {
  const int b = element() / LENGTH, t = element() % LENGTH;
  if (b >= BATCH) return;
  const uint32_t h = ((uint32_t)(batch * BATCH + b) + 1u) * 2654435761u;
  const int start = (int)(h >> 16) % VOCABULARY, stride = 1 + (int)(h >> 8) % 5;
  tokens[element()] = (start + t * stride) % VOCABULARY;
  targets[element()] = (start + (t + 1) * stride) % VOCABULARY;
}

/* Units: the tables, the blocks, the head -------------------------------------------------------------------------- */

static void linear_backward(const Model* m, float* dx, float* dw, float* db, const float* dy, const float* x,
                            const float* w, int in, int out) {
  each(m, TOKENS * in, linear_inputs, dx, dy, w, in, out);
  each(m, out * in, linear_weights, dw, db, dy, x, in, out);
}

/* Adds to dx, unlike the other functions. */
static void normalize_backward(const Model* m, float* dx, float* dgain, float* dshift, const float* normed,
                               const float* scale, const float* gain) {
  each(m, TOKENS, normalize_inputs, dx, m->values->dy, normed, scale, gain);
  each(m, WIDTH, normalize_weights, dgain, dshift, m->values->dy, normed);
}

static void forward_block(const Model* m, int l) {
  const Block& w = m->weights.block[l];
  Values* v = m->values;
  Saved* k = &v->saved[l];
  check(cudaMemcpyAsync(k->in, v->x, sizeof k->in, cudaMemcpyDeviceToDevice, m->stream));
  each(m, TOKENS, normalize, v->y, k->normed1, k->scale1, k->in, w.norm1, w.shift1);
  each(m, TOKENS * 3 * WIDTH, linear, k->qkv, v->y, w.qkv, w.qkv_bias, WIDTH, 3 * WIDTH);
  each(m, BATCH * HEADS * LENGTH, attend, k->attended, k->attention, k->qkv);
  each(m, TOKENS * WIDTH, linear, k->middle, k->attended, w.project, w.project_bias, WIDTH, WIDTH);
  each(m, TOKENS * WIDTH, add, k->middle, k->in);
  each(m, TOKENS, normalize, v->y, k->normed2, k->scale2, k->middle, w.norm2, w.shift2);
  each(m, TOKENS * HIDDEN, linear, k->hidden, v->y, w.up, w.up_bias, WIDTH, HIDDEN);
  each(m, TOKENS * HIDDEN, activate, k->active, k->hidden);
  each(m, TOKENS * WIDTH, linear, v->x, k->active, w.down, w.down_bias, HIDDEN, WIDTH);
  each(m, TOKENS * WIDTH, add, v->x, k->middle);
}

static void backward_block(const Model* m, int l) {
  const Block &w = m->weights.block[l], &g = m->gradients.block[l];
  Values* v = m->values;
  const Saved* k = &v->saved[l];
  linear_backward(m, v->wide, g.down, g.down_bias, v->dx, k->active, w.down, HIDDEN, WIDTH);
  each(m, TOKENS * HIDDEN, activate_inputs, v->wide, k->hidden);
  each(m, TOKENS * WIDTH, scale_and_shift, v->y, k->normed2, w.norm2, w.shift2);
  linear_backward(m, v->dy, g.up, g.up_bias, v->wide, v->y, w.up, WIDTH, HIDDEN);
  normalize_backward(m, v->dx, g.norm2, g.shift2, k->normed2, k->scale2, w.norm2);
  linear_backward(m, v->dy, g.project, g.project_bias, v->dx, k->attended, w.project, WIDTH, WIDTH);
  each(m, BATCH * HEADS * LENGTH, attend_queries, v->wide, v->dscore, v->dy, k->attention, k->qkv);
  each(m, BATCH * HEADS * LENGTH, attend_keys, v->wide, v->dscore, v->dy, k->attention, k->qkv);
  each(m, TOKENS * WIDTH, scale_and_shift, v->y, k->normed1, w.norm1, w.shift1);
  linear_backward(m, v->dy, g.qkv, g.qkv_bias, v->wide, v->y, w.qkv, WIDTH, 3 * WIDTH);
  normalize_backward(m, v->dx, g.norm1, g.shift1, k->normed1, k->scale1, w.norm1);
}

static void forward_head(const Model* m) {
  const Tensors& w = m->weights;
  Values* v = m->values;
  each(m, TOKENS, normalize, v->y, v->normed, v->scale, v->x, w.norm, w.shift);
  each(m, TOKENS * VOCABULARY, linear, v->probabilities, v->y, w.head, nullptr, WIDTH, VOCABULARY);
  each(m, TOKENS, compare, v->probabilities, v->losses, v->targets);
}

static void backward_head(const Model* m) {
  const Tensors &w = m->weights, &g = m->gradients;
  Values* v = m->values;
  each(m, TOKENS * VOCABULARY, compare_inputs, v->probabilities, v->targets);
  each(m, TOKENS * WIDTH, scale_and_shift, v->y, v->normed, w.norm, w.shift);
  check(cudaMemsetAsync(v->dx, 0, sizeof v->dx, m->stream));
  linear_backward(m, v->dy, g.head, nullptr, v->probabilities, v->y, w.head, WIDTH, VOCABULARY);
  normalize_backward(m, v->dx, g.norm, g.shift, v->normed, v->scale, w.norm);
}

static void forward(const Model* m, int unit) {
  Values* v = m->values;
  if (unit > LAYERS) {
    forward_head(m);
  } else if (unit > 0) {
    forward_block(m, unit - 1);
  } else {
    each(m, TOKENS * WIDTH, look_up, v->x, m->weights.token_table, m->weights.place_table, v->tokens);
  }
}

static void backward(const Model* m, int unit) {
  Values* v = m->values;
  if (unit > LAYERS) {
    backward_head(m);
  } else if (unit > 0) {
    backward_block(m, unit - 1);
  } else {
    each(m, VOCABULARY * WIDTH, look_up_tokens, m->gradients.token_table, v->dx, v->tokens);
    each(m, LENGTH * WIDTH, look_up_places, m->gradients.place_table, v->dx);
  }
}

/* Data ------------------------------------------------------------------------------------------------------------- */

static void load_batch(const Model* m, int batch) {
  each(m, TOKENS, make_batch, m->values->tokens, m->values->targets, batch);
}

/* Returns the loss of the last forward pass. Waits for the GPU. */
static double read_loss(const Model* m) {
  double losses[TOKENS], loss = 0;
  check(cudaMemcpyAsync(losses, m->values->losses, sizeof losses, cudaMemcpyDeviceToHost, m->stream));
  check(cudaStreamSynchronize(m->stream));
  for (int t = 0; t < TOKENS; ++t) loss += losses[t];
  return loss;
}
