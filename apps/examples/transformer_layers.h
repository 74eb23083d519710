#pragma once
/* Layers of the transformers of these examples, in plain C, and their sizes. */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum {
  VOCABULARY = 64,
  WIDTH = 64,
  LAYERS = 4,
  HEADS = 4,
  HEAD = WIDTH / HEADS,
  HIDDEN = 4 * WIDTH,
  LENGTH = 32,
  BATCH = 4,
  TOKENS = BATCH * LENGTH
};

/* Backward functions add to dw and db, and overwrite dx unless a comment says otherwise. */

static void linear(float* y, const float* x, const float* w, const float* b, int in, int out) {
  for (int t = 0; t < TOKENS; ++t) {
    for (int o = 0; o < out; ++o) {
      float sum = b != NULL ? b[o] : 0.0f;
      for (int i = 0; i < in; ++i) sum += w[o * in + i] * x[t * in + i];
      y[t * out + o] = sum;
    }
  }
}

/* Computes only the gradients whose addresses are not NULL. */
static void linear_backward(float* dx, float* dw, float* db, const float* dy, const float* x, const float* w, int in,
                            int out) {
  for (int t = 0; t < TOKENS; ++t) {
    if (dx != NULL) memset(dx + t * in, 0, sizeof(float) * (size_t)in);
    for (int o = 0; o < out; ++o) {
      const float d = dy[t * out + o];
      if (db != NULL) db[o] += d;
      if (dx != NULL) {
        for (int i = 0; i < in; ++i) dx[t * in + i] += d * w[o * in + i];
      }
      if (dw != NULL) {
        for (int i = 0; i < in; ++i) dw[o * in + i] += d * x[t * in + i];
      }
    }
  }
}

/* Layer norm: `normed` is x with mean 0 and standard deviation 1; y = normed * gain + shift. */
static void normalize(float* y, float* normed, float* scale, const float* x, const float* gain, const float* shift) {
  for (int t = 0; t < TOKENS; ++t) {
    float mean = 0, variance = 0;
    for (int c = 0; c < WIDTH; ++c) mean += x[t * WIDTH + c] / (float)WIDTH;
    for (int c = 0; c < WIDTH; ++c) variance += (x[t * WIDTH + c] - mean) * (x[t * WIDTH + c] - mean) / (float)WIDTH;
    scale[t] = 1.0f / sqrtf(variance + 1e-5f);
    for (int c = 0; c < WIDTH; ++c) {
      normed[t * WIDTH + c] = (x[t * WIDTH + c] - mean) * scale[t];
      y[t * WIDTH + c] = normed[t * WIDTH + c] * gain[c] + shift[c];
    }
  }
}

/* Adds to dx, unlike the other functions. Computes no dx if dx is NULL, and no dgain and dshift if dgain is NULL. */
static void normalize_backward(float* dx, float* dgain, float* dshift, const float* dy, const float* normed,
                               const float* scale, const float* gain) {
  for (int t = 0; t < TOKENS; ++t) {
    const float *d = dy + t * WIDTH, *n = normed + t * WIDTH;
    float mean = 0, along = 0;
    if (dgain != NULL) {
      for (int c = 0; c < WIDTH; ++c) dgain[c] += d[c] * n[c];
      for (int c = 0; c < WIDTH; ++c) dshift[c] += d[c];
    }
    if (dx == NULL) continue;
    for (int c = 0; c < WIDTH; ++c) {
      mean += d[c] * gain[c] / (float)WIDTH;
      along += d[c] * gain[c] * n[c] / (float)WIDTH;
    }
    for (int c = 0; c < WIDTH; ++c) dx[t * WIDTH + c] += scale[t] * (d[c] * gain[c] - mean - n[c] * along);
  }
}

/* The index of the query (part 0), key (1) or value (2) of token t in sequence b, head h. */
static int64_t qkv_at(int b, int t, int part, int h) { return ((b * LENGTH + t) * 3 + part) * WIDTH + h * HEAD; }

static void attend(float* attended, float* attention, const float* qkv) {
  for (int bh = 0; bh < BATCH * HEADS; ++bh) {
    const int b = bh / HEADS, h = bh % HEADS;
    for (int t = 0; t < LENGTH; ++t) {
      float *of = attention + (bh * LENGTH + t) * LENGTH, *out = attended + (b * LENGTH + t) * WIDTH + h * HEAD;
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
  }
}

static void attend_backward(float* dqkv, const float* dattended, const float* attention, const float* qkv) {
  memset(dqkv, 0, sizeof(float) * TOKENS * 3 * WIDTH);
  for (int bh = 0; bh < BATCH * HEADS; ++bh) {
    const int b = bh / HEADS, h = bh % HEADS;
    for (int t = 0; t < LENGTH; ++t) {
      const float *of = attention + (bh * LENGTH + t) * LENGTH, *d = dattended + (b * LENGTH + t) * WIDTH + h * HEAD;
      float dshare[LENGTH], along = 0;
      for (int s = 0; s <= t; ++s) {
        dshare[s] = 0;
        for (int c = 0; c < HEAD; ++c) {
          dshare[s] += d[c] * qkv[qkv_at(b, s, 2, h) + c];
          dqkv[qkv_at(b, s, 2, h) + c] += of[s] * d[c];
        }
        along += of[s] * dshare[s];
      }
      for (int s = 0; s <= t; ++s) {
        const float dscore = of[s] * (dshare[s] - along) / sqrtf(HEAD);
        for (int c = 0; c < HEAD; ++c) {
          dqkv[qkv_at(b, t, 0, h) + c] += dscore * qkv[qkv_at(b, s, 1, h) + c];
          dqkv[qkv_at(b, s, 1, h) + c] += dscore * qkv[qkv_at(b, t, 0, h) + c];
        }
      }
    }
  }
}

/* Replaces logits by probabilities, and returns the mean loss. */
static double softmax_loss(float* logits, const int* targets) {
  double loss = 0;
  for (int t = 0; t < TOKENS; ++t) {
    float *of = logits + t * VOCABULARY, largest = of[0], sum = 0;
    for (int v = 1; v < VOCABULARY; ++v) largest = of[v] > largest ? of[v] : largest;
    for (int v = 0; v < VOCABULARY; ++v) sum += of[v] = expf(of[v] - largest);
    for (int v = 0; v < VOCABULARY; ++v) of[v] /= sum;
    loss -= log((double)of[targets[t]]) / (double)TOKENS;
  }
  return loss;
}

/* Replaces probabilities by the gradients of the logits. */
static void softmax_loss_backward(float* probabilities, const int* targets) {
  for (int t = 0; t < TOKENS; ++t) probabilities[t * VOCABULARY + targets[t]] -= 1.0f;
  for (int i = 0; i < TOKENS * VOCABULARY; ++i) probabilities[i] /= (float)TOKENS;
}
