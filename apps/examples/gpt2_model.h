#pragma once
/* The model of gpt2.c, gpt2_sharded.c and gpt2_sharded.cpp: GPT-2 in plain C, with the sizes of transformer_layers.h.
 * Each tensor of all layers is one array, and the tensor of layer l begins at l * (elements of one layer). The table of
 * tokens is also the matrix of the last layer: the two are tied. The model allocates no weights, and has no code for
 * several ranks.
 */
#include <stdio.h>

#include "transformer_layers.h"

/* Pointers to all tensors of the weights, or of the gradients. */
typedef struct {
  float *tokens, *places; /* the tables of the embedding */
  float *norm1, *shift1, *qkv, *qkv_bias, *project, *project_bias, *norm2, *shift2, *up, *up_bias, *down, *down_bias;
  float *norm, *shift; /* before the last layer */
} Tensors;

/* The saved activations of one layer. */
typedef struct {
  float in[TOKENS * WIDTH], normed1[TOKENS * WIDTH], scale1[TOKENS], qkv[TOKENS * 3 * WIDTH];
  float attention[BATCH * HEADS * LENGTH * LENGTH], attended[TOKENS * WIDTH], middle[TOKENS * WIDTH];
  float normed2[TOKENS * WIDTH], scale2[TOKENS], hidden[TOKENS * HIDDEN], active[TOKENS * HIDDEN];
} Saved;

typedef struct {
  Tensors weights, gradients;
  Saved saved[LAYERS];
  float x[TOKENS * WIDTH], dx[TOKENS * WIDTH], normed[TOKENS * WIDTH], scale[TOKENS];
  float probabilities[TOKENS * VOCABULARY];
  float y[TOKENS * WIDTH], dy[TOKENS * WIDTH], wide[TOKENS * HIDDEN]; /* scratch */
  int tokens[TOKENS], targets[TOKENS];
  double loss;
} Model;

/* Tensors ---------------------------------------------------------------------------------------------------------- */

/* Units: the parts of the model that own tensors. */
enum { TOKEN_UNIT, PLACE_UNIT, LAYER_UNIT, LAST_UNIT = LAYER_UNIT + LAYERS, UNITS };

typedef struct {
  int unit, layers; /* layer l of the tensor belongs to unit + l */
  const char* name;
  int64_t rows, columns; /* of one layer; columns is 1 for a vector */
  float** at;
} Tensor;

enum { TENSORS = 16, NAME_LENGTH = 32 };

static void list_tensors(Tensors* of, Tensor list[TENSORS]) {
  const Tensor all[TENSORS] = {
      {TOKEN_UNIT, 1, "table", VOCABULARY, WIDTH, &of->tokens},
      {PLACE_UNIT, 1, "table", LENGTH, WIDTH, &of->places},
      {LAYER_UNIT, LAYERS, "norm1", WIDTH, 1, &of->norm1},
      {LAYER_UNIT, LAYERS, "shift1", WIDTH, 1, &of->shift1},
      {LAYER_UNIT, LAYERS, "qkv", 3 * WIDTH, WIDTH, &of->qkv},
      {LAYER_UNIT, LAYERS, "qkv_bias", 3 * WIDTH, 1, &of->qkv_bias},
      {LAYER_UNIT, LAYERS, "project", WIDTH, WIDTH, &of->project},
      {LAYER_UNIT, LAYERS, "project_bias", WIDTH, 1, &of->project_bias},
      {LAYER_UNIT, LAYERS, "norm2", WIDTH, 1, &of->norm2},
      {LAYER_UNIT, LAYERS, "shift2", WIDTH, 1, &of->shift2},
      {LAYER_UNIT, LAYERS, "up", HIDDEN, WIDTH, &of->up},
      {LAYER_UNIT, LAYERS, "up_bias", HIDDEN, 1, &of->up_bias},
      {LAYER_UNIT, LAYERS, "down", WIDTH, HIDDEN, &of->down},
      {LAYER_UNIT, LAYERS, "down_bias", WIDTH, 1, &of->down_bias},
      {LAST_UNIT, 1, "norm", WIDTH, 1, &of->norm},
      {LAST_UNIT, 1, "shift", WIDTH, 1, &of->shift},
  };
  memcpy(list, all, sizeof all);
}

static void name_unit(int unit, char name[NAME_LENGTH]) {
  const int layer = unit - LAYER_UNIT;
  if (layer >= 0 && layer < LAYERS) {
    snprintf(name, NAME_LENGTH, "layer.%d", layer);
  } else {
    snprintf(name, NAME_LENGTH, "%s", unit == TOKEN_UNIT ? "tokens" : unit == PLACE_UNIT ? "places" : "last");
  }
}

/* Initial value of element i of the tensor "UNIT.NAME": 1 for gains of norms, 0 for other vectors, otherwise
 * pseudo-random. */
static float initial(const char* name, int64_t i) {
  if (strstr(name, "norm") != NULL) return 1.0f;
  if (strstr(name, "shift") != NULL || strstr(name, "bias") != NULL) return 0.0f;
  uint64_t h = (uint64_t)i;
  for (; *name != '\0'; ++name) h = h * 1099511628211u + (unsigned char)*name;
  for (int round = 0; round < 3; ++round) h = (h ^ (h >> 29)) * 0xBF58476D1CE4E5B9u;
  return ((float)(h >> 40) / 16777216.0f - 0.5f) * 0.12f;
}

/* Uses: the parts of the model that run one after another ---------------------------------------------------------- */

enum { USES = LAYERS + 2 };

static void forward_embedding(Model* m) {
  for (int i = 0; i < TOKENS * WIDTH; ++i) {
    const int token = i / WIDTH, c = i % WIDTH;
    m->x[i] = m->weights.tokens[m->tokens[token] * WIDTH + c] + m->weights.places[token % LENGTH * WIDTH + c];
  }
}

static void backward_embedding(Model* m) {
  for (int i = 0; i < TOKENS * WIDTH; ++i) {
    const int token = i / WIDTH, c = i % WIDTH;
    m->gradients.tokens[m->tokens[token] * WIDTH + c] += m->dx[i];
    m->gradients.places[token % LENGTH * WIDTH + c] += m->dx[i];
  }
}

static float gelu(float x) { return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }

static float gelu_slope(float x) {
  const float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.7978845608f * (1.0f + 3 * 0.044715f * x * x);
}

static void forward_layer(Model* m, int l) {
  const Tensors* w = &m->weights;
  Saved* k = &m->saved[l];
  memcpy(k->in, m->x, sizeof k->in);
  normalize(m->y, k->normed1, k->scale1, k->in, w->norm1 + l * WIDTH, w->shift1 + l * WIDTH);
  linear(k->qkv, m->y, w->qkv + l * 3 * WIDTH * WIDTH, w->qkv_bias + l * 3 * WIDTH, WIDTH, 3 * WIDTH);
  attend(k->attended, k->attention, k->qkv);
  linear(k->middle, k->attended, w->project + l * WIDTH * WIDTH, w->project_bias + l * WIDTH, WIDTH, WIDTH);
  for (int i = 0; i < TOKENS * WIDTH; ++i) k->middle[i] += k->in[i];
  normalize(m->y, k->normed2, k->scale2, k->middle, w->norm2 + l * WIDTH, w->shift2 + l * WIDTH);
  linear(k->hidden, m->y, w->up + l * HIDDEN * WIDTH, w->up_bias + l * HIDDEN, WIDTH, HIDDEN);
  for (int i = 0; i < TOKENS * HIDDEN; ++i) k->active[i] = gelu(k->hidden[i]);
  linear(m->x, k->active, w->down + l * WIDTH * HIDDEN, w->down_bias + l * WIDTH, HIDDEN, WIDTH);
  for (int i = 0; i < TOKENS * WIDTH; ++i) m->x[i] += k->middle[i];
}

static void backward_layer(Model* m, int l) {
  const Tensors *w = &m->weights, *g = &m->gradients;
  const Saved* k = &m->saved[l];
  const float *norm1 = w->norm1 + l * WIDTH, *shift1 = w->shift1 + l * WIDTH;
  const float *norm2 = w->norm2 + l * WIDTH, *shift2 = w->shift2 + l * WIDTH;
  linear_backward(m->wide, g->down + l * WIDTH * HIDDEN, g->down_bias + l * WIDTH, m->dx, k->active,
                  w->down + l * WIDTH * HIDDEN, HIDDEN, WIDTH);
  for (int i = 0; i < TOKENS * HIDDEN; ++i) m->wide[i] *= gelu_slope(k->hidden[i]);
  for (int i = 0; i < TOKENS * WIDTH; ++i) m->y[i] = k->normed2[i] * norm2[i % WIDTH] + shift2[i % WIDTH];
  linear_backward(m->dy, g->up + l * HIDDEN * WIDTH, g->up_bias + l * HIDDEN, m->wide, m->y, w->up + l * HIDDEN * WIDTH,
                  WIDTH, HIDDEN);
  normalize_backward(m->dx, g->norm2 + l * WIDTH, g->shift2 + l * WIDTH, m->dy, k->normed2, k->scale2, norm2);
  linear_backward(m->dy, g->project + l * WIDTH * WIDTH, g->project_bias + l * WIDTH, m->dx, k->attended,
                  w->project + l * WIDTH * WIDTH, WIDTH, WIDTH);
  attend_backward(m->wide, m->dy, k->attention, k->qkv);
  for (int i = 0; i < TOKENS * WIDTH; ++i) m->y[i] = k->normed1[i] * norm1[i % WIDTH] + shift1[i % WIDTH];
  linear_backward(m->dy, g->qkv + l * 3 * WIDTH * WIDTH, g->qkv_bias + l * 3 * WIDTH, m->wide, m->y,
                  w->qkv + l * 3 * WIDTH * WIDTH, WIDTH, 3 * WIDTH);
  normalize_backward(m->dx, g->norm1 + l * WIDTH, g->shift1 + l * WIDTH, m->dy, k->normed1, k->scale1, norm1);
}

static void forward_last(Model* m) {
  normalize(m->y, m->normed, m->scale, m->x, m->weights.norm, m->weights.shift);
  linear(m->probabilities, m->y, m->weights.tokens, NULL, WIDTH, VOCABULARY);
  m->loss = softmax_loss(m->probabilities, m->targets);
}

static void backward_last(Model* m) {
  softmax_loss_backward(m->probabilities, m->targets);
  for (int i = 0; i < TOKENS * WIDTH; ++i) {
    m->y[i] = m->normed[i] * m->weights.norm[i % WIDTH] + m->weights.shift[i % WIDTH];
    m->dx[i] = 0;
  }
  linear_backward(m->dy, m->gradients.tokens, NULL, m->probabilities, m->y, m->weights.tokens, WIDTH, VOCABULARY);
  normalize_backward(m->dx, m->gradients.norm, m->gradients.shift, m->dy, m->normed, m->scale, m->weights.norm);
}

static void forward_use(Model* m, int use) {
  if (use == 0) {
    forward_embedding(m);
  } else if (use <= LAYERS) {
    forward_layer(m, use - 1);
  } else {
    forward_last(m);
  }
}

static void backward_use(Model* m, int use) {
  if (use == 0) {
    backward_embedding(m);
  } else if (use <= LAYERS) {
    backward_layer(m, use - 1);
  } else {
    backward_last(m);
  }
}

/* Data and text ---------------------------------------------------------------------------------------------------- */

/* Token t is character t of this string. */
static const char alphabet[VOCABULARY + 1] = " .,abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ012345678";

static const char text[] =
    "The small river begins in the hills, where the snow melts in spring. It runs through a forest of old oak trees, "
    "and past a mill that has not turned for years. In summer the children of the village swim there, and in autumn "
    "the water carries yellow leaves down to the lake. The lake is deep and cold, and the people say that nobody has "
    "ever seen the ground. In winter it freezes, and the fishers cut holes into the ice and wait. The oldest of them "
    "says that a good fisher needs three things, a warm coat, a long line and no hurry. ";

/* Loads batch number `batch`, which begins at pseudo-random positions of the text. */
static void load_batch(Model* m, int batch) {
  const int positions = (int)sizeof text - LENGTH - 1;
  for (int b = 0; b < BATCH; ++b) {
    const uint32_t h = ((uint32_t)(batch * BATCH + b) + 1u) * 2654435761u;
    const char* from = text + (h >> 8) % (uint32_t)positions;
    for (int t = 0; t < LENGTH; ++t) {
      m->tokens[b * LENGTH + t] = (int)(strchr(alphabet, from[t]) - alphabet);
      m->targets[b * LENGTH + t] = (int)(strchr(alphabet, from[t + 1]) - alphabet);
    }
  }
}

/* Chooses the token at `place` of the first sequence, after a forward pass, from the probabilities at the place before
 * it. */
static void choose_token(Model* m, int place) {
  const float* probabilities = m->probabilities + (place - 1) * VOCABULARY;
  const float coin = (float)((uint32_t)place * 2654435761u >> 8) / 16777216.0f;
  float sum = 0;
  int token = 0;
  while (token < VOCABULARY - 1 && (sum += probabilities[token]) < coin) ++token;
  m->tokens[place] = token;
}

static void print_text(const Model* m) {
  for (int t = 0; t < LENGTH; ++t) putchar(alphabet[m->tokens[t]]);
  putchar('\n');
}
