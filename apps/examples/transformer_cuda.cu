/* The transformer of transformer.c in plain CUDA, on one rank. It runs on its own stream.
 * Weights, gradients and optimizer state are in one allocation.
 *
 *   transformer_cuda [STEPS [PARTS]]      each step accumulates the gradients of PARTS micro-batches
 */
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "transformer_kernels_cuda.h"

/* The weights, their gradients and the moments of AdamW, in one allocation on the GPU. */
struct Memory {
  float *weights = nullptr, *gradients, *mean, *square;
  int64_t count = 0;

  ~Memory() { cudaFree(weights); }
};

static int64_t size_of(const Tensor& t) { return t.rows * (t.columns > 0 ? t.columns : 1); }

static void allocate(Memory* memory, Model* m) {
  Tensor weights[TENSORS], gradients[TENSORS];
  list_tensors(&m->weights, weights);
  list_tensors(&m->gradients, gradients);
  std::vector<float> first;
  for (int t = 0; t < TENSORS; ++t) {
    for (int64_t i = 0; i < size_of(weights[t]); ++i) first.push_back(initial(weights[t], t, i));
  }
  memory->count = (int64_t)first.size();
  check(cudaMalloc((void**)&memory->weights, first.size() * 4 * sizeof(float)));
  check(cudaMemsetAsync(memory->weights, 0, first.size() * 4 * sizeof(float), m->stream));
  check(
      cudaMemcpyAsync(memory->weights, first.data(), first.size() * sizeof(float), cudaMemcpyHostToDevice, m->stream));
  check(cudaStreamSynchronize(m->stream));
  memory->gradients = memory->weights + memory->count;
  memory->mean = memory->gradients + memory->count;
  memory->square = memory->mean + memory->count;
  int64_t offset = 0;
  for (int t = 0; t < TENSORS; offset += size_of(weights[t++])) {
    *weights[t].at = memory->weights + offset;
    *gradients[t].at = memory->gradients + offset;
  }
}

/* The factors of one step of AdamW. */
struct Rates {
  float slope, decay, inverse_root, of_gradient;
};

__global__ static void adamw(float* weight, const float* gradient, float* mean, float* square, int64_t count,
                             Rates of) {
  const int i = element();
  if (i >= count) return;
  const float g = gradient[i] * of.of_gradient;
  mean[i] = 0.9f * mean[i] + 0.1f * g;
  square[i] = 0.95f * square[i] + 0.05f * (g * g);
  const float direction = mean[i] / (sqrtf(square[i]) * of.inverse_root + 1e-8f);
  weight[i] = weight[i] * (1.0f - of.decay) - of.slope * direction;
}

/* Applies AdamW. Steps count from 1. The gradients are the sum over `parts` micro-batches. */
static void update(const Model* m, Memory* memory, int step, int parts) {
  const double rate = 0.003;
  const Rates of = {(float)(rate / (1 - pow(0.9, step))), (float)(rate * 0.1), (float)(1 / sqrt(1 - pow(0.95, step))),
                    1.0f / (float)parts};
  each(m, memory->count, adamw, memory->weights, memory->gradients, memory->mean, memory->square, memory->count, of);
}

static void train(Model* m, int steps, int parts) {
  Memory memory;
  allocate(&memory, m);
  for (int step = 1; step <= steps; ++step) {
    double loss = 0;
    check(cudaMemsetAsync(memory.gradients, 0, sizeof(float) * (size_t)memory.count, m->stream));
    for (int part = 0; part < parts; ++part) {
      load_batch(m, (step - 1) * parts + part);
      for (int unit = 0; unit < UNITS; ++unit) forward(m, unit);
      for (int unit = UNITS - 1; unit >= 0; --unit) backward(m, unit);
      loss += read_loss(m) / parts;
    }
    update(m, &memory, step, parts);
    printf("step %d loss %.17g\n", step, loss);
  }
  check(cudaStreamSynchronize(m->stream));
}

int main(int count, char** words) {
  try {
    const auto number = [&](int at, int otherwise) { return count > at ? atoi(words[at]) : otherwise; };
    Model m;
    train(&m, number(1, 20), number(2, 1));
    return 0;
  } catch (const std::exception& failure) {
    fprintf(stderr, "transformer_cuda: %s\n", failure.what());
    return 2;
  }
}
