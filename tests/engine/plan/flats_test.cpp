// Tests of how the parameters of a unit are divided into flat buffers.
#include <gtest/gtest.h>

#include "engine/plan/model_spec.h"

namespace aliquot {
namespace {

ParameterSpec parameter(const std::string& name, bool trainable, Split split, bool partial) {
  ParameterSpec spec;
  spec.tensor = {name, {12, 4}, DType::kFloat32, trainable};
  spec.split = std::move(split);
  spec.partial_gradient = partial;
  return spec;
}

ModelSpec model(bool trainable) {
  ModelSpec model;
  model.units = {{"u",
                  {parameter("u.full", trainable, {}, false), parameter("u.partial", trainable, {}, true),
                   parameter("u.rows", trainable, Split::rows(), false),
                   parameter("u.columns", trainable, Split::columns(), true)},
                  GradientMode::kAdd}};
  model.uses = {{0}};
  return model;
}

using Lists = std::vector<std::vector<int32_t>>;

Lists parameters_of(const std::vector<FlatSpec>& flats) {
  Lists lists;
  for (const FlatSpec& flat : flats) lists.push_back(flat.parameters);
  return lists;
}

TEST(Flats, SeparateFullPartialAndSplitParametersInTensorGroups) {
  const auto all = flats(model(true), 2, 1, false, 0, 4);
  EXPECT_EQ(parameters_of(all), (Lists{{0}, {1}, {2, 3}}));
  EXPECT_EQ(all[0].gradients, TensorGradients::kSame);
  EXPECT_EQ(all[1].gradients, TensorGradients::kSum);
  EXPECT_EQ(all[2].gradients, TensorGradients::kSlice);
  EXPECT_EQ(all[2].layout.tensors()[0].shape, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(all[2].layout.tensors()[1].shape, (std::vector<int64_t>{12, 1}));
  EXPECT_EQ(parameters_of(flats(model(true), 2)), (Lists{{0, 1, 2, 3}}));
}

/// Frozen parameters have no gradients, so a partial gradient makes no difference.
TEST(Flats, OfFrozenParametersDoNotDependOnPartialGradients) {
  const auto all = flats(model(false), 2, 1, false, 0, 4);
  EXPECT_EQ(parameters_of(all), (Lists{{0, 1}, {2, 3}}));
  EXPECT_EQ(all[0].gradients, TensorGradients::kSame);
  EXPECT_EQ(all[1].gradients, TensorGradients::kSlice);
}

}  // namespace
}  // namespace aliquot
