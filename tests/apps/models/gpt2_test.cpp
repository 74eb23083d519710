// Tests the parts of GPT-2 that other models do not have. models_test.cpp tests what all models have in common.
#include "apps/models/gpt2.h"

#include <gtest/gtest.h>
#include <map>

#include "kernels/system/error.h"

namespace aliquot::test {
namespace {

TEST(Gpt2, DeclaresHuggingFacesNamesAndShapes) {
  ThreadPool pool(1);
  const auto loops = make_host_backend(pool);
  const Gpt2 model(find_model_preset("gpt2-124m")->shape, {.batch = 1, .sequence = 16}, *loops);
  int64_t parameters = 0;
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const ModelUnit& unit : model.units()) {
    for (const ModelTensor& tensor : unit.tensors) {
      parameters += tensor.element_count();
      shapes[unit.name + "." + tensor.name] = tensor.shape;
    }
  }
  EXPECT_EQ(parameters, 124439808);
  EXPECT_EQ(shapes.size(), 2u + 12u * 12u + 2u);
  EXPECT_EQ(shapes["wte.weight"], (std::vector<int64_t>{50257, 768}));
  EXPECT_EQ(shapes["h.11.attn.c_attn.weight"], (std::vector<int64_t>{768, 2304}));
  EXPECT_EQ(shapes["h.0.mlp.c_proj.weight"], (std::vector<int64_t>{3072, 768}));
  ASSERT_EQ(model.uses().size(), model.units().size() + 1);
  EXPECT_EQ(model.uses().front(), model.uses().back());  // the tied embedding is the first and the last use
}

TEST(Gpt2, RejectsInvalidShapesAndBatches) {
  ThreadPool pool(1);
  const auto loops = make_host_backend(pool);
  const ModelShape nano = find_model_preset("gpt2-nano")->shape;
  EXPECT_THROW(Gpt2(nano, {.sequence = 129}, *loops), UsageError);
  EXPECT_THROW(Gpt2(nano, {.batch = 0}, *loops), UsageError);
  ModelShape indivisible = nano;
  indivisible.heads = indivisible.kv_heads = 3;
  EXPECT_THROW(Gpt2(indivisible, {}, *loops), UsageError);
  Gpt2 model(nano, {.batch = 1, .sequence = 2}, *loops);
  const std::vector<int32_t> good{1, 2}, high{1, 256}, low{1, -2}, few{1}, ignored{kIgnoredTarget, 2};
  EXPECT_THROW(model.set_batch({high, good}), UsageError);
  EXPECT_THROW(model.set_batch({good, low}), UsageError);
  EXPECT_THROW(model.set_batch({ignored, good}), UsageError);
  EXPECT_THROW(model.set_batch({good, few}), UsageError);
  EXPECT_NO_THROW(model.set_batch({good, good}));
  EXPECT_NO_THROW(model.set_batch({good, ignored}));
}

}  // namespace
}  // namespace aliquot::test
