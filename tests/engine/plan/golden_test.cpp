// Compares the text of schedules with golden files. After an intended change, run
//   ALIQUOT_WRITE_GOLDEN=1 build/tests/engine/golden_test
// and review the difference.

#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

#include "engine/proof/validate.h"

namespace aliquot {
namespace {

/// An embedding, two blocks (one with a frozen bias) and a head.
ModelSpec four_units() {
  ModelSpec model;
  model.units = {
      {"embed", {{.tensor = {"embed.weight", {1000, 8}}}}, GradientMode::kAdd},
      {"h.0",
       {{.tensor = {"h.0.weight", {64, 64}}}, {.tensor = {"h.0.bias", {64}, DType::kFloat32, /*trainable=*/false}}},
       GradientMode::kAdd},
      {"h.1", {{.tensor = {"h.1.weight", {64, 64}}}, {.tensor = {"h.1.bias", {64}}}}, GradientMode::kAdd},
      {"head", {{.tensor = {"head.weight", {1000, 8}}}}, GradientMode::kAdd}};
  model.uses = {{0}, {1}, {2}, {3}};
  return model;
}

/// four_units() with activations. The two blocks can be recomputed, and their backward can be split.
ModelSpec four_units_with_activations() {
  ModelSpec model = four_units();
  model.activations = {{{1024, 0, 0, false},
                        {1024, 4096, 512, true, true, true, true, 2048},
                        {1024, 4096, 512, true, true, false, true, 2048},
                        {0, 2048, 0, false}},
                       1024};
  return model;
}

/// four_units_with_activations() with collectives and split parameters in both blocks.
ModelSpec four_units_with_collectives() {
  ModelSpec model = four_units_with_activations();
  for (const int block : {1, 2}) {
    model.activations.uses[block].collectives = {
        {"rows", CollectiveKind::kGather, UsePart::kForward, UseBuffer::kSaved, 0, 8, 8},
        {"sum", CollectiveKind::kSum, UsePart::kForward, UseBuffer::kOutput, 0, 8, 8},
        {"sum back", CollectiveKind::kSum, UsePart::kBackward, UseBuffer::kBackward, 0, 8, 8},
        {"rows again", CollectiveKind::kGather, UsePart::kBackwardWeights, UseBuffer::kScratch, 0, 8, 8}};
    model.units[block].parameters[0].split = Split::rows();
    model.units[block].parameters[1].partial_gradient = true;
  }
  return model;
}

Policy with_muon(Policy policy) {
  policy.matrix_updates.emplace();
  return policy;
}

struct Case {
  std::string file;
  Policy policy;
};

class Golden : public ::testing::TestWithParam<Case> {};

TEST_P(Golden, TextMatchesTheGoldenFile) {
  const Policy& policy = GetParam().policy;
  const bool activations = policy.recompute > 0 || policy.pipeline > 1;
  const ModelSpec model = policy.tensor > 1 ? four_units_with_collectives()
                          : activations     ? four_units_with_activations()
                                            : four_units();
  const std::vector<Plan> stages =
      plan_pipeline(model, policy, Topology::one_host(policy.replay_every != 0 ? 4 : 2 * policy.tensor));
  EXPECT_NO_THROW(prove(stages));
  std::string planned;
  for (const Plan& stage : stages) {
    if (stages.size() > 1) planned += fmt::format("pipeline stage {}\n", stage.stage.index);
    planned += text(stage);
  }
  if (policy.replay_every != 0) {
    const std::vector<Plan> replays = replays_of(stages);
    EXPECT_NO_THROW(prove(replays));
    for (const Plan& replay : replays)
      planned +=
          fmt::format("replay{}\n{}",
                      replays.size() > 1 ? fmt::format(" of pipeline stage {}", replay.stage.index) : "", text(replay));
  }
  const std::string path = fmt::format("{}/{}.txt", ALIQUOT_GOLDEN_FOLDER, GetParam().file);
  if (std::getenv("ALIQUOT_WRITE_GOLDEN") != nullptr) std::ofstream(path) << planned;
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  std::ostringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(planned, golden.str()) << path;
}

INSTANTIATE_TEST_SUITE_P(
    FourUnitsOnTwoRanks, Golden,
    ::testing::Values(
        Case{"stage_0", {.zero_stage = 0}}, Case{"stage_1", {.zero_stage = 1}}, Case{"stage_2", {.zero_stage = 2}},
        Case{"stage_3_copy", {.zero_stage = 3, .gather = GatherMode::kCopy}},
        Case{"stage_3_view", {.zero_stage = 3, .gather = GatherMode::kView}},
        Case{"stage_3_keep_2", {.zero_stage = 3, .keep_gathered = 2, .gather = GatherMode::kCopy}},
        Case{"stage_3_copy_recompute_1", {.zero_stage = 3, .recompute = 1, .gather = GatherMode::kCopy}},
        Case{"stage_2_recompute_2_accumulate_2", {.zero_stage = 2, .micro_batch_count = 2, .recompute = 2}},
        Case{"stage_2_replicas_2_accumulate_2", {.zero_stage = 2, .replica_count = 2, .micro_batch_count = 2}},
        Case{"stage_2_offload", {.zero_stage = 2, .offload_state = Offload::kHost}},
        Case{"stage_3_offload_all",
             {.zero_stage = 3,
              .precision = {.compute = DType::kBFloat16},
              .offload_state = Offload::kDisk,
              .offload_parameters = Offload::kHost}},
        Case{"stage_3_copy_offload_update_in_backward",
             {.zero_stage = 3,
              .gather = GatherMode::kCopy,
              .offload_state = Offload::kDisk,
              .update_in_backward = true}},
        Case{"stage_0_accumulate_2", {.zero_stage = 0, .micro_batch_count = 2}},
        Case{"stage_0_accumulate_2_shard",
             {.zero_stage = 0, .micro_batch_count = 2, .accumulate_into = AccumulateInto::kShard}},
        Case{"stage_1_accumulate_2", {.zero_stage = 1, .micro_batch_count = 2}},
        Case{"stage_2_accumulate_2", {.zero_stage = 2, .micro_batch_count = 2}},
        Case{"stage_3_copy_accumulate_2", {.zero_stage = 3, .micro_batch_count = 2, .gather = GatherMode::kCopy}},
        Case{"stage_3_view_accumulate_2", {.zero_stage = 3, .micro_batch_count = 2, .gather = GatherMode::kView}},
        Case{"stage_3_copy_update_in_backward",
             {.zero_stage = 3, .gather = GatherMode::kCopy, .update_in_backward = true}},
        Case{"stage_2_check_state", {.zero_stage = 2, .check_state = true}},
        Case{"stage_3_copy_check_state_update_in_backward",
             {.zero_stage = 3, .gather = GatherMode::kCopy, .update_in_backward = true, .check_state = true}},
        Case{"stage_0_replay_accumulate_2", {.zero_stage = 0, .micro_batch_count = 2, .replay_every = 5}},
        Case{"stage_2_replay", {.zero_stage = 2, .replay_every = 5}},
        Case{"stage_3_copy_replay_accumulate_2",
             {.zero_stage = 3, .micro_batch_count = 2, .gather = GatherMode::kCopy, .replay_every = 5}},
        Case{"stage_2_reproducible_4", {.zero_stage = 2, .micro_batch_count = 4, .reproducible = true}},
        Case{"stage_0_matrices", with_muon({.zero_stage = 0})},
        Case{"stage_3_copy_matrices", with_muon({.zero_stage = 3, .gather = GatherMode::kCopy})},
        Case{"stage_2_matrices_offload", with_muon({.zero_stage = 2, .offload_state = Offload::kHost})},
        Case{"stage_2_bf16_sent_in_bf16",
             {.zero_stage = 2, .precision = {.compute = DType::kBFloat16, .reduce = DType::kBFloat16}}}),
    [](const auto& of) { return of.param.file; });

INSTANTIATE_TEST_SUITE_P(
    TensorGroups, Golden,
    ::testing::Values(Case{"tensor_2_stage_2_accumulate_2", {.zero_stage = 2, .micro_batch_count = 2, .tensor = 2}},
                      Case{"tensor_2_stage_3_copy_recompute_1",
                           {.zero_stage = 3, .tensor = 2, .recompute = 1, .gather = GatherMode::kCopy}},
                      Case{"tensor_2_pipeline_2_zero_bubble",
                           {.zero_stage = 2,
                            .micro_batch_count = 2,
                            .tensor = 2,
                            .pipeline = 2,
                            .pipeline_schedule = PipelineSchedule::kZeroBubble,
                            .pipeline_cut = {2, 2}}}),
    [](const auto& of) { return of.param.file; });

INSTANTIATE_TEST_SUITE_P(
    Pipelines, Golden,
    ::testing::Values(
        Case{"pipeline_2_1f1b_stage_2_accumulate_3",
             {.zero_stage = 2, .micro_batch_count = 3, .pipeline = 2, .pipeline_cut = {2, 2}, .recompute = 1}},
        Case{"pipeline_2_1f1b_stage_2_accumulate_3_replay",
             {.zero_stage = 2,
              .micro_batch_count = 3,
              .pipeline = 2,
              .pipeline_cut = {2, 2},
              .recompute = 1,
              .replay_every = 5}},
        Case{"pipeline_2_gpipe_stage_3_accumulate_2",
             {.zero_stage = 3,
              .micro_batch_count = 2,
              .pipeline = 2,
              .pipeline_schedule = PipelineSchedule::kGpipe,
              .pipeline_cut = {1, 3},
              .recompute = 0,
              .gather = GatherMode::kCopy}},
        Case{"pipeline_2_interleaved_stage_2_accumulate_3",
             {.zero_stage = 2,
              .micro_batch_count = 3,
              .pipeline = 2,
              .pipeline_schedule = PipelineSchedule::kInterleaved,
              .virtual_stages = 2,
              .pipeline_cut = {1, 1, 1, 1},
              .recompute = 1}},
        Case{"pipeline_2_zero_bubble_stage_3_accumulate_3",
             {.zero_stage = 3,
              .micro_batch_count = 3,
              .pipeline = 2,
              .pipeline_schedule = PipelineSchedule::kZeroBubble,
              .pipeline_cut = {2, 2},
              .recompute = 1,
              .gather = GatherMode::kCopy}}),
    [](const auto& of) { return of.param.file; });

}  // namespace
}  // namespace aliquot
