// Damages the flat buffers and the matrix groups of plans with tensor groups. The validator must report each defect.
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>

#include "engine/proof/validate.h"
#include "tests/engine/plan/random_plan.h"

namespace aliquot {
namespace {

constexpr int kTensor = 3, kReplicas = 2;

ParameterSpec parameter(const std::string& name, std::vector<int64_t> shape, bool matrix) {
  ParameterSpec spec;
  spec.tensor = {name, std::move(shape), DType::kFloat32, true};
  spec.matrix = matrix;
  return spec;
}

/// Two units, each with matrices in two flat buffers, a split parameter and a frozen one.
ModelSpec model() {
  ModelSpec model;
  for (const std::string unit : {"a", "b"}) {
    std::vector<ParameterSpec> parameters = {
        parameter(unit + ".full", {8, 6}, true), parameter(unit + ".partial", {6, 8}, true),
        parameter(unit + ".split", {10, 5}, false), parameter(unit + ".frozen", {7}, false)};
    parameters[1].partial_gradient = true;
    parameters[2].split = Split::rows();
    parameters[3].tensor.trainable = false;
    model.units.push_back({unit, std::move(parameters), GradientMode::kAdd});
  }
  model.uses = {{0}, {1}};
  return model;
}

Plan planned() {
  Policy policy{.zero_stage = 2, .replica_count = kReplicas, .tensor = kTensor};
  policy.matrix_updates = {{.state_bytes_per_block = 1024, .iterations = 5}};
  return plan(model(), policy, testing::hosts(2 * kReplicas * kTensor, 2 * kReplicas * kTensor));
}

struct Change {
  std::string sentence;
  std::function<void(Plan&)> apply;
};

/// Applies the change to a plan without defects. The only defect must have a sentence that contains Change::sentence.
void expect_reported(const Change& change) {
  Plan plan = planned();
  ASSERT_TRUE(validate(plan).empty()) << validate(plan).front().sentence;
  change.apply(plan);
  const auto defects = validate(plan);
  ASSERT_EQ(defects.size(), 1U) << change.sentence;
  EXPECT_EQ(defects.front().kind, DefectKind::kMalformed);
  EXPECT_NE(defects.front().sentence.find(change.sentence), std::string::npos) << defects.front().sentence;
}

/// Changes the first tensor of a flat buffer, and divides it as flats() does.
void relay(Plan& plan, int32_t flat, int parts, const std::function<void(TensorSpec&)>& change) {
  std::vector<TensorSpec> tensors = plan.flats[flat].layout.tensors();
  change(tensors.front());
  plan.flats[flat].layout = FlatLayout(std::move(tensors), 2, parts);
}

constexpr int32_t kFull = 0, kPartial = 1, kSplit = 2, kFrozen = 3;

TEST(ValidateFlats, ReportsEveryDefectOfAFlatBuffer) {
  const std::vector<Change> changes = {
      {"flat buffer 2 and its parameter a.split differ in the shape of the largest slice",
       [](Plan& plan) { relay(plan, kSplit, kReplicas, [](TensorSpec& tensor) { --tensor.shape[0]; }); }},
      {"flat buffer 2 and its parameter a.split differ in the shape of the largest slice",
       [](Plan& plan) { relay(plan, kSplit, kReplicas, [](TensorSpec& tensor) {
                          tensor.shape = {10, 5};
                        }); }},
      {"flat buffer 0 and its parameter a.full differ in the shape of the largest slice",
       [](Plan& plan) { relay(plan, kFull, kReplicas, [](TensorSpec& tensor) { ++tensor.shape[1]; }); }},
      {"flat buffer 0 and its parameter a.full differ in the name",
       [](Plan& plan) { relay(plan, kFull, kReplicas, [](TensorSpec& tensor) { tensor.name = "a.x"; }); }},
      {"flat buffer 0 and its parameter a.full differ in the type of elements",
       [](Plan& plan) { relay(plan, kFull, kReplicas, [](TensorSpec& tensor) { tensor.dtype = DType::kBFloat16; }); }},
      {"flat buffer 3 and its parameter a.frozen differ in the trainability",
       [](Plan& plan) { plan.flats[kFrozen].trainable = true; }},
      {"flat buffer 0 and its parameter a.full differ in the kind of updates",
       [](Plan& plan) { plan.flats[kFull].matrices = false; }},
      {"flat buffer 0 does not list a parameter", [](Plan& plan) { plan.flats[kFull].parameters = {}; }},
      {"flat buffer 0 does not list a parameter", [](Plan& plan) { plan.flats[kFull].parameters = {4}; }},
      {"flat buffer 0 does not list a parameter",
       [](Plan& plan) {
         plan.flats[kFull].parameters = {0, 1};
       }},
      {"a.frozen is in 0 flat buffers: expected 1",
       [](Plan& plan) {
         plan.flats.erase(plan.flats.begin() + kFrozen);
         plan.flats_of_unit = {{0, 1, 2}, {3, 4, 5, 6}};
       }},
      {"a.full is in 2 flat buffers: expected 1",
       [](Plan& plan) {
         plan.flats.push_back(plan.flats[kFull]);
         plan.flats_of_unit[0].push_back(static_cast<int32_t>(plan.flats.size()) - 1);
       }},
      {"a shard of flat buffer 1 has 512 elements: expected a multiple of 1536",
       [](Plan& plan) { relay(plan, kPartial, kReplicas, [](TensorSpec&) {}); }},
      {"a shard of flat buffer 2 has 256 elements: expected a multiple of 512",
       [](Plan& plan) { relay(plan, kSplit, 1, [](TensorSpec&) {}); }},
      {"the policy has 2 replicas and tensor groups of 0 ranks", [](Plan& plan) { plan.policy.tensor = 0; }}};
  for (const Change& change : changes) expect_reported(change);
}

TEST(ValidateFlats, ReportsEveryOtherRelationOfGradients) {
  for (const int32_t flat : {kFull, kPartial, kSplit, kFrozen}) {
    for (const auto other : {TensorGradients::kSame, TensorGradients::kSum, TensorGradients::kSlice}) {
      if (planned().flats[flat].gradients == other) continue;
      expect_reported(
          {"relation of gradients in a tensor group", [=](Plan& plan) { plan.flats[flat].gradients = other; }});
    }
  }
}

TEST(ValidateFlats, ReportsEveryDefectOfAMatrixGroup) {
  ASSERT_GE(planned().matrix_groups.front().flats.size(), 2U);
  const std::string flats = "matrix group 0 does not name exactly the flat buffers of its matrices, in order";
  const std::vector<Change> changes = {
      {"matrix group 0 names no flat buffer", [](Plan& plan) { plan.matrix_groups[0].flats.clear(); }},
      {flats, [](Plan& plan) { plan.matrix_groups[0].flats.pop_back(); }},
      {flats, [](Plan& plan) { plan.matrix_groups[0].flats.push_back(kSplit); }},
      {flats, [](Plan& plan) { plan.matrix_groups[0].flats.push_back(plan.matrix_groups[0].flats.back()); }},
      {flats, [](Plan& plan) { std::swap(plan.matrix_groups[0].flats[0], plan.matrix_groups[0].flats[1]); }},
      {"matrix group 0 has another shape for tensor 0 of flat buffer 0",
       [](Plan& plan) {
         plan.matrix_groups[0].matrices[0].shape = {4, 12};
       }},
      {"matrices of unit a are in the matrix groups 0 and 1: expected one group", [](Plan& plan) {
         MatrixGroup second = plan.matrix_groups[0];
         plan.matrix_groups[0].flats = {kFull};
         std::erase_if(plan.matrix_groups[0].matrices, [](const OwnedMatrix& matrix) { return matrix.flat != kFull; });
         std::erase(second.flats, kFull);
         std::erase_if(second.matrices, [](const OwnedMatrix& matrix) { return matrix.flat == kFull; });
         plan.matrix_groups.insert(plan.matrix_groups.begin() + 1, second);
       }}};
  for (const Change& change : changes) expect_reported(change);
}

}  // namespace
}  // namespace aliquot
