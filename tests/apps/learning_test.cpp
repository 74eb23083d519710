#include <gtest/gtest.h>

#include "apps/data/loader.h"
#include "tests/support/plain_training.h"

namespace aliquot::test {
namespace {

TEST(SyntheticLanguage, ANanoModelLearnsItWithinAHundredSteps) {
  PlainOptions options{.shape = find_model_preset("gpt2-nano")->shape, .model = {.batch = 4}};
  options.learning_rate = 1e-3f;
  PlainTraining training(options);
  const auto source = make_synthetic_language(options.shape.vocabulary);
  Loader loader(*source, {options.shape.context, options.model.batch, options.shape.vocabulary, true, 1, 0, 1});
  double first = 0, last = 0;
  for (int step = 0; step < 100; ++step) {
    loader.load(step * options.model.batch, 0);
    const double loss = training.pass({loader.tokens(), loader.targets()});
    training.update();
    if (step == 0) first = loss;
    if (step >= 95) last += loss / 5;
    if (step % 10 == 0) RecordProperty("loss_" + std::to_string(step), std::to_string(loss));
  }
  RecordProperty("last", std::to_string(last));
  EXPECT_GT(first, 5.0);
  EXPECT_LT(last, 2.6);
}

}  // namespace
}  // namespace aliquot::test
