// Tests that the gradients of the small model match finite differences of its loss.
#include "tests/engine/small_model.h"

#include <cmath>
#include <gtest/gtest.h>

namespace aliquot {
namespace {

using namespace testing_model;

struct Store {
  explicit Store(Tensors& tensors) {
    for (int t = 0; t < kTensors; ++t) {
      values.emplace_back(static_cast<std::size_t>(element_count(t)), 0.0f);
      tensors.at[t] = values[t].data();
    }
  }
  std::vector<std::vector<float>> values;
};

double loss_of(SmallModel& model) {
  const auto data = samples(0, 0, 0);
  for (int use = 0; use < kUses; ++use) model.forward(use, data);
  return model.loss();
}

TEST(SmallModel, GradientsMatchFiniteDifferences) {
  SmallModel model;
  Store parameters(model.value), gradients(model.gradient);
  for (int t = 0; t < kTensors; ++t) {
    const std::string name = shapes()[t].unit + "." + shapes()[t].name;
    for (int64_t i = 0; i < element_count(t); ++i) parameters.values[t][i] = initial_value(name, i);
  }
  loss_of(model);
  for (int use = kUses - 1; use >= 0; --use) model.backward(use);
  double largest = 0;
  for (const auto& tensor : gradients.values) {
    for (const float g : tensor) largest = std::max(largest, std::fabs(static_cast<double>(g)));
  }
  ASSERT_GT(largest, 0);
  constexpr float kStep = 1.0f / 128;  // with a smaller step, rounding of fp32 sums would dominate
  for (int t = 0; t < kTensors; ++t) {
    for (int64_t i = 0; i < element_count(t); ++i) {
      float& parameter = parameters.values[t][i];
      const float original = parameter;
      parameter = original + kStep;
      const double above = loss_of(model);
      parameter = original - kStep;
      const double below = loss_of(model);
      parameter = original;
      EXPECT_NEAR(gradients.values[t][i], (above - below) / (2 * kStep), 2e-3 * largest)
          << shapes()[t].unit << "." << shapes()[t].name << "[" << i << "]";
    }
  }
}

}  // namespace
}  // namespace aliquot
