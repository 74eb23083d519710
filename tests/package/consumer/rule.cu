// A user's optimizer rule for hosts and GPUs, in one file for nvcc. Without a GPU it only prints the optimizer's
// description.
#include <aliquot/rule.h>
#include <aliquot/rule_cuda.h>
#include <array>
#include <cstdio>
#include <string_view>

struct Signum {
  static constexpr int kStateCount = 1;
  static constexpr std::array<std::string_view, kStateCount> kStateNames = {"momentum"};
  float lr, beta;
  ALIQUOT_HOST_DEVICE Signum at(float lr_scale, float) const { return {lr * lr_scale, beta}; }
  ALIQUOT_HOST_DEVICE float update(float weight, float gradient, float* state) const {
    state[0] = beta * state[0] + (1.0f - beta) * gradient;
    return weight - (state[0] > 0.0f ? lr : (state[0] < 0.0f ? -lr : 0.0f));
  }
};

int main() {
  const aliquot::CustomOptimizer signum = aliquot::custom_optimizer<Signum>(
      "signum", 1e-4,
      [](double lr, int64_t) {
        return Signum{static_cast<float>(lr), 0.9f};
      },
      aliquot::custom_cuda<Signum>());
  std::printf("%s\n", signum.description->name.c_str());
}
