#pragma once
/* The model of transformer.c and transformer_sharded.cpp: tensors, units and data in plain C. The model has pointers
 * to its weights, which the program allocates. It has no code for several ranks.
 */
#include "transformer_layers.h"

enum { UNITS = LAYERS + 2, TENSORS = 5 + 12 * LAYERS };

typedef struct {
  float *norm1, *shift1, *qkv, *qkv_bias, *project, *project_bias, *norm2, *shift2, *up, *up_bias, *down, *down_bias;
} Block;

/* Pointers to all tensors of the weights, or of the gradients. */
typedef struct {
  float *token_table, *place_table;
  Block block[LAYERS];
  float *norm, *shift, *head;
} Tensors;

/* The saved activations of one block. */
typedef struct {
  float in[TOKENS * WIDTH], normed1[TOKENS * WIDTH], scale1[TOKENS], qkv[TOKENS * 3 * WIDTH];
  float attention[BATCH * HEADS * LENGTH * LENGTH], attended[TOKENS * WIDTH], middle[TOKENS * WIDTH];
  float normed2[TOKENS * WIDTH], scale2[TOKENS], hidden[TOKENS * HIDDEN], active[TOKENS * HIDDEN];
} Saved;

typedef struct {
  Tensors weights, gradients;
  Saved saved[LAYERS];
  float x[TOKENS * WIDTH], dx[TOKENS * WIDTH], normed[TOKENS * WIDTH], scale[TOKENS],
      probabilities[TOKENS * VOCABULARY];
  float y[TOKENS * WIDTH], dy[TOKENS * WIDTH], wide[TOKENS * HIDDEN]; /* scratch */
  int tokens[TOKENS], targets[TOKENS];
  double loss;
} Model;

/* Tensors ---------------------------------------------------------------------------------------------------------- */

typedef struct {
  int unit;
  const char* name;
  int64_t rows, columns; /* columns is 0 for a vector */
  float** at;
} Tensor;

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
static float initial(const Tensor* t, int tensor, int64_t i) {
  if (t->columns == 0) return strncmp(t->name, "norm", 4) == 0 ? 1.0f : 0.0f;
  uint64_t h = ((uint64_t)tensor << 32) + (uint64_t)i + 1;
  for (int round = 0; round < 3; ++round) h = (h ^ (h >> 29)) * 0xBF58476D1CE4E5B9u;
  return ((float)(h >> 40) / 16777216.0f - 0.5f) * 0.12f;
}

/* Units: the tables, the blocks, the head -------------------------------------------------------------------------- */

static void forward_attention(Model* m, int l) {
  const Block* w = &m->weights.block[l];
  Saved* k = &m->saved[l];
  memcpy(k->in, m->x, sizeof k->in);
  normalize(m->y, k->normed1, k->scale1, k->in, w->norm1, w->shift1);
  linear(k->qkv, m->y, w->qkv, w->qkv_bias, WIDTH, 3 * WIDTH);
  attend(k->attended, k->attention, k->qkv);
  linear(k->middle, k->attended, w->project, w->project_bias, WIDTH, WIDTH);
  for (int i = 0; i < TOKENS * WIDTH; ++i) k->middle[i] += k->in[i];
}

/* The hidden layer of block l, with `hidden` elements. The bias of its output may be NULL. */
static void forward_hidden(float* to, Model* m, int l, int hidden, const float* output_bias) {
  const Block* w = &m->weights.block[l];
  Saved* k = &m->saved[l];
  normalize(m->y, k->normed2, k->scale2, k->middle, w->norm2, w->shift2);
  linear(k->hidden, m->y, w->up, w->up_bias, WIDTH, hidden);
  for (int i = 0; i < TOKENS * hidden; ++i) k->active[i] = k->hidden[i] > 0 ? k->hidden[i] * k->hidden[i] : 0.0f;
  linear(to, k->active, w->down, output_bias, hidden, WIDTH);
}

static void forward_block(Model* m, int l) {
  forward_attention(m, l);
  forward_hidden(m->x, m, l, HIDDEN, m->weights.block[l].down_bias);
  for (int i = 0; i < TOKENS * WIDTH; ++i) m->x[i] += m->saved[l].middle[i];
}

/* Computes the gradient of the input of forward_hidden(), after the norm. */
static void backward_hidden(float* to, Model* m, int l, int hidden) {
  const Block *w = &m->weights.block[l], *g = &m->gradients.block[l];
  const Saved* k = &m->saved[l];
  linear_backward(m->wide, g->down, g->down_bias, m->dx, k->active, w->down, hidden, WIDTH);
  for (int i = 0; i < TOKENS * hidden; ++i) m->wide[i] *= k->hidden[i] > 0 ? 2 * k->hidden[i] : 0.0f;
  for (int i = 0; i < TOKENS * WIDTH; ++i) m->y[i] = k->normed2[i] * w->norm2[i % WIDTH] + w->shift2[i % WIDTH];
  linear_backward(to, g->up, g->up_bias, m->wide, m->y, w->up, WIDTH, hidden);
}

/* `from` is the result of backward_hidden(). */
static void backward_attention(Model* m, int l, const float* from) {
  const Block *w = &m->weights.block[l], *g = &m->gradients.block[l];
  const Saved* k = &m->saved[l];
  normalize_backward(m->dx, g->norm2, g->shift2, from, k->normed2, k->scale2, w->norm2);
  linear_backward(m->dy, g->project, g->project_bias, m->dx, k->attended, w->project, WIDTH, WIDTH);
  attend_backward(m->wide, m->dy, k->attention, k->qkv);
  for (int i = 0; i < TOKENS * WIDTH; ++i) m->y[i] = k->normed1[i] * w->norm1[i % WIDTH] + w->shift1[i % WIDTH];
  linear_backward(m->dy, g->qkv, g->qkv_bias, m->wide, m->y, w->qkv, WIDTH, 3 * WIDTH);
  normalize_backward(m->dx, g->norm1, g->shift1, m->dy, k->normed1, k->scale1, w->norm1);
}

static void backward_block(Model* m, int l) {
  backward_hidden(m->dy, m, l, HIDDEN);
  backward_attention(m, l, m->dy);
}

static void forward_head(Model* m) {
  normalize(m->y, m->normed, m->scale, m->x, m->weights.norm, m->weights.shift);
  linear(m->probabilities, m->y, m->weights.head, NULL, WIDTH, VOCABULARY);
  m->loss = softmax_loss(m->probabilities, m->targets);
}

static void backward_head(Model* m) {
  softmax_loss_backward(m->probabilities, m->targets);
  for (int i = 0; i < TOKENS * WIDTH; ++i) {
    m->y[i] = m->normed[i] * m->weights.norm[i % WIDTH] + m->weights.shift[i % WIDTH];
    m->dx[i] = 0;
  }
  linear_backward(m->dy, m->gradients.head, NULL, m->probabilities, m->y, m->weights.head, WIDTH, VOCABULARY);
  normalize_backward(m->dx, m->gradients.norm, m->gradients.shift, m->dy, m->normed, m->scale, m->weights.norm);
}

static void forward(Model* m, int unit) {
  if (unit > LAYERS) {
    forward_head(m);
  } else if (unit > 0) {
    forward_block(m, unit - 1);
  } else {
    for (int i = 0; i < TOKENS * WIDTH; ++i) {
      const int token = i / WIDTH, c = i % WIDTH;
      m->x[i] =
          m->weights.token_table[m->tokens[token] * WIDTH + c] + m->weights.place_table[token % LENGTH * WIDTH + c];
    }
  }
}

static void backward(Model* m, int unit) {
  if (unit > LAYERS) {
    backward_head(m);
  } else if (unit > 0) {
    backward_block(m, unit - 1);
  } else {
    for (int i = 0; i < TOKENS * WIDTH; ++i) {
      const int token = i / WIDTH, c = i % WIDTH;
      m->gradients.token_table[m->tokens[token] * WIDTH + c] += m->dx[i];
      m->gradients.place_table[token % LENGTH * WIDTH + c] += m->dx[i];
    }
  }
}

/* Data ------------------------------------------------------------------------------------------------------------- */

/* Loads batch number `batch`. The tokens of a sequence increase by a constant stride. */
static void load_batch(Model* m, int batch) {
  for (int b = 0; b < BATCH; ++b) {
    uint32_t h = ((uint32_t)(batch * BATCH + b) + 1u) * 2654435761u;
    const int start = (int)(h >> 16) % VOCABULARY, stride = 1 + (int)(h >> 8) % 5;
    for (int t = 0; t < LENGTH; ++t) {
      m->tokens[b * LENGTH + t] = (start + t * stride) % VOCABULARY;
      m->targets[b * LENGTH + t] = (start + (t + 1) * stride) % VOCABULARY;
    }
  }
}
