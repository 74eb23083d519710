#include <gtest/gtest.h>

#include "apps/data/loader.h"
#include "tests/support/all_cases.h"
#include "tests/support/plain_training.h"

namespace aliquot::test {
namespace {

struct Losses {
  double first = 0, last = 0;  // loss of the first step, mean loss of the last five steps
};

Losses learn(const char* model, DType compute, DType gradient_type) {
  PlainOptions options{.shape = find_model_preset(model)->shape,
                       .model = {.batch = 4, .compute = compute, .gradient_type = gradient_type}};
  options.learning_rate = 1e-3f;
  if (compute == DType::kFloat16) options.loss_scale = 0x1p16f;
  PlainTraining training(options);
  const auto source = make_synthetic_language(options.shape.vocabulary);
  Loader loader(*source, {options.shape.context, options.model.batch, options.shape.vocabulary, true, 1, 0, 1});
  Losses losses;
  for (int step = 0; step < 100; ++step) {
    loader.load(step * options.model.batch, 0);
    const double loss = training.pass({loader.tokens(), loader.targets()});
    training.update();
    if (step == 0) losses.first = loss;
    if (step >= 95) losses.last += loss / 5;
  }
  return losses;
}

/// The losses in fp32. Two tests use them.
const Losses& exact_losses() {
  static const Losses losses = learn("gpt2-nano", DType::kFloat32, DType::kFloat32);
  return losses;
}

TEST(SyntheticLanguage, ANanoModelLearnsItWithinAHundredSteps) {
  const Losses& losses = exact_losses();
  RecordProperty("last", std::to_string(losses.last));
  EXPECT_GT(losses.first, 5.0);
  EXPECT_LT(losses.last, 2.6);
}

TEST(SyntheticLanguage, ANanoLlamaLearnsItWithinAHundredSteps) {
  const Losses losses = learn("llama-nano", DType::kFloat32, DType::kFloat32);
  RecordProperty("last", std::to_string(losses.last));
  EXPECT_GT(losses.first, 5.0);
  EXPECT_LT(losses.last, 2.6);
}

TEST(SyntheticLanguage, ANanoModelLearnsItAsWellIn16Bits) {
  const Losses& exact = exact_losses();
  CaseSelection selection(2);
  for (const auto& [compute, gradient_type] : {std::pair{DType::kBFloat16, DType::kFloat32},
                                               {DType::kBFloat16, DType::kBFloat16},
                                               {DType::kFloat16, DType::kFloat32}}) {
    if (!selection.next()) continue;
    const Losses narrow = learn("gpt2-nano", compute, gradient_type);
    RecordProperty("last", std::to_string(narrow.last));
    EXPECT_NEAR(narrow.first, exact.first, 1e-3 * exact.first);
    EXPECT_NEAR(narrow.last, exact.last, 0.01 * exact.last);
  }
}

}  // namespace
}  // namespace aliquot::test
