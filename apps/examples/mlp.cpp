// Trains a small sharded network to approximate a function: mlp [RANKS [ZERO_STAGE [STEPS]]], or under mpirun.
#include <aliquot/aliquot.h>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr int kLayers = 4, kWidth = 32, kBatch = 16;

struct Layer {
  float *weight = nullptr, *weight_gradient = nullptr, *bias = nullptr, *bias_gradient = nullptr;
};
struct Network {  // holds pointers to the weights, which Aliquot owns
  std::array<Layer, kLayers> layers;
  std::array<std::array<float, kBatch * kWidth>, kLayers + 1> values{};  // the input of each layer, then the output
  std::array<float, kBatch * kWidth> slopes{};  // gradient of the loss with respect to one layer's values
};

void forward(Network& n, int l) {
  const Layer& layer = n.layers[l];
  for (int b = 0; b < kBatch; ++b) {
    for (int o = 0; o < kWidth; ++o) {
      float sum = layer.bias[o];
      for (int i = 0; i < kWidth; ++i) sum += layer.weight[o * kWidth + i] * n.values[l][b * kWidth + i];
      n.values[l + 1][b * kWidth + o] = l + 1 < kLayers && sum < 0 ? 0.1f * sum : sum;
    }
  }
}

void backward(Network& n, int l) {
  const Layer& layer = n.layers[l];
  std::array<float, kBatch * kWidth> before{};
  for (int b = 0; b < kBatch; ++b) {
    for (int o = 0; o < kWidth; ++o) {
      const float result = n.values[l + 1][b * kWidth + o];
      const float slope = n.slopes[b * kWidth + o] * (l + 1 < kLayers && result < 0 ? 0.1f : 1.0f);
      layer.bias_gradient[o] += slope;
      for (int i = 0; i < kWidth; ++i) {
        layer.weight_gradient[o * kWidth + i] += slope * n.values[l][b * kWidth + i];
        before[b * kWidth + i] += slope * layer.weight[o * kWidth + i];
      }
    }
  }
  n.slopes = before;
}

/// Loads batch number `batch`. The first value of each row is a sample point in [-1, 1).
void load(Network& n, int batch) {
  for (int b = 0; b < kBatch; ++b) {
    const uint32_t hash = (static_cast<uint32_t>(batch * kBatch + b) + 1) * 2654435761u;
    n.values[0][b * kWidth] = static_cast<float>(hash >> 8) / 8388608.0f - 1.0f;
  }
}

/// Returns the mean squared error against f(x) = x^3 - x / 2, and sets n.slopes to its gradient.
double loss(Network& n) {
  double sum = 0;
  n.slopes = {};
  for (int b = 0; b < kBatch; ++b) {
    const float x = n.values[0][b * kWidth], miss = n.values[kLayers][b * kWidth] - (x * x * x - 0.5f * x);
    sum += miss * miss / kBatch;
    n.slopes[b * kWidth] = 2 * miss / kBatch;
  }
  return sum;
}

void train(aliquot::World& world, int stage, int steps) {
  Network network;
  aliquot::Engine engine(world, {.zero_stage = stage, .optimizer = aliquot::AdamW{.lr = 0.01f}});
  for (Layer& layer : network.layers) {
    engine.add_unit("layer." + std::to_string(engine.units().size()))
        .add("weight", {kWidth, kWidth}, &layer.weight, &layer.weight_gradient)
        .add("bias", {kWidth}, &layer.bias, &layer.bias_gradient, {.decayed = false});
  }
  engine.materialize([](const aliquot::ParameterSpec&, int64_t offset, std::span<float> values) {
    for (float& value : values) value = static_cast<float>(offset++ * 7919 % 1001 - 500) / 2500.0f;
  });
  for (int step = 1; step <= steps; ++step) {
    engine.micro_batch();
    load(network, (step - 1) * world.rank_count() + world.rank());
    for (auto& unit : engine.units()) {
      const auto live = unit.forward();
      forward(network, unit.index());
    }
    double mean = loss(network) / world.rank_count();
    for (auto& unit : reversed(engine.units())) {
      const auto live = unit.backward();
      backward(network, unit.index());
    }
    if (engine.step().skipped && world.rank() == 0) std::printf("step %d was skipped\n", step);
    world.sum({&mean, 1});
    if (world.rank() == 0 && step % 20 == 0) std::printf("step %d loss %.17g\n", step, mean);
  }
}

int main(int count, char** words) {
  const auto number = [&](int at, int otherwise) { return count > at ? std::atoi(words[at]) : otherwise; };
  aliquot::World::run(number(1, 2), [&](aliquot::World& world) { train(world, number(2, 3), number(3, 100)); });
}
