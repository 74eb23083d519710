// Runs aliquot train with pipelines and other options. Each run has the digest, losses and norms of the run without a
// pipeline, and uses the planned memory on every pipeline stage.
#include "tests/apps/train/pipeline_runs.h"

namespace aliquot {
namespace {

using namespace pipeline_runs;

/// A pipeline with `stages` pipeline stages of 2 ranks each.
struct Piped {
  int stages;
  std::string options;
};
const std::vector<Piped> kPipelines = {{2, " --pipeline 2 --pipeline-schedule gpipe"},
                                       {4, " --pipeline 4 --pipeline-schedule zero-bubble"},
                                       {2, " --pipeline 2 --pipeline-schedule interleaved"}};

void expect_same_with_pipelines(const std::string& options, const Start& start = {}) {
  const RunResults alone = train(2, options, start);
  EXPECT_EQ(alone.losses.size(), 3u) << options;
  for (const auto& [stages, pipeline] : kPipelines) {
    const RunResults run = train(2 * stages, options + pipeline, start);
    expect_equal(run, alone, options + pipeline);
    expect_planned_is_measured(run, static_cast<std::size_t>(stages), options + pipeline);
  }
}

TEST(PipelineOptions, OptimizersGiveTheSameResultsWithAPipeline) {
  for (const std::string optimizer :
       {"adamw8bit --zero-stage 1", "adamw8bit --zero-stage 3", "lion --zero-stage 2", "muon --zero-stage 1",
        "muon --zero-stage 3", "sgd --zero-stage 0", "adamw --state bf16 --zero-stage 2"})
    expect_same_with_pipelines("--model llama-nano --tied on --optimizer " + optimizer);
}

TEST(PipelineOptions, PrecisionsGiveTheSameResultsWithAPipeline) {
  for (const std::string precision : {"bf16 --zero-stage 3", "bf16 --gradients bf16 --zero-stage 2",
                                      "bf16 --master fp32 --zero-stage 1", "fp16 --zero-stage 3"})
    expect_same_with_pipelines("--model gpt2-nano --tied off --precision " + precision);
}

TEST(PipelineOptions, OffloadGivesTheSameResultsWithAPipeline) {
  const test::TemporaryDirectory directory;
  const std::string disk = "disk:" + directory.path().string();
  for (const std::string& offload :
       {std::string("--zero-stage 1 --offload host"),
        std::string("--zero-stage 3 --offload host --offload-parameters host"), "--zero-stage 0 --offload " + disk,
        "--zero-stage 3 --offload " + disk + " --offload-parameters " + disk})
    expect_same_with_pipelines("--model llama-nano --tied on " + offload);
}

TEST(PipelineOptions, UpdateInBackwardGivesTheSameResultsWithAPipeline) {
  for (const std::string zero_stage : {"0", "2", "3"})
    expect_same_with_pipelines("--model llama-nano --tied on --clip 0 --update-in-backward --zero-stage " + zero_stage);
}

TEST(PipelineOptions, CheckingModeGivesTheSameResultsWithAPipeline) {
  const std::string options = "--model gpt2-nano --tied on --recompute block --zero-stage ";
  for (const std::string zero_stage : {"1", "3"})
    expect_same_with_pipelines(options + zero_stage, {.environment = {"ALIQUOT_CHECK=1"}});
}

/// The ranks of each pipeline stage are on two nodes, like the ranks of the run without a pipeline.
TEST(PipelineOptions, QuantizationBetweenNodesGivesTheSameResultsWithAPipeline) {
  for (const std::string what : {"weights", "gradients", "both"})
    expect_same_with_pipelines("--model llama-nano --tied off --zero-stage 3 --quantize " + what,
                               {.environment = {"ALIQUOT_RANKS_PER_NODE=1"}});
}

/// First, each pipeline stage has two replicas of one rank. Then, a budget limits the memory of each rank.
TEST(PipelineOptions, ReplicasAndBudgetsGiveTheSameResultsWithAPipeline) {
  expect_same_with_pipelines("--model llama-nano --tied on --zero-stage 2 --replicas 2");
  expect_same_with_pipelines("--model llama-nano --tied on --zero-stage 3 --memory-budget 2MiB");
}

/// The file sets the number of pipeline stages, the number of micro-batches, and recomputation. Its global batch is
/// divided among the ranks of one pipeline stage.
TEST(PipelineOptions, DeepspeedFilesSetThePipeline) {
  const test::TemporaryDirectory directory;
  const std::string file = directory.path() / "ds.json";
  std::ofstream(file) << R"({"train_batch_size": 16, "gradient_accumulation_steps": 8, "gradient_clipping": 1,
      "zero_optimization": {"stage": 2}, "pipeline": {"stages": 2, "activation_checkpoint_interval": 1}})";
  const std::string model = "--model llama-nano --tied off ";
  const RunResults read = train(4, model + "--lr 0.01 --deepspeed " + file);
  const std::string flags = "--lr 0.01 --schedule constant --zero-stage 2 ";
  expect_equal(read, train(4, model + flags + "--pipeline 2 --recompute block"), "the same options");
  expect_equal(read, train(2, model + flags), "without a pipeline");
  expect_planned_is_measured(read, 2, file);
}

/// If a gradient on one pipeline stage is not finite, all pipeline stages skip the step. With fp16, all of them reduce
/// the loss scale.
TEST(PipelineOptions, AStepWithAnOverflowOnOneStageIsSkippedOnAllStages) {
  const auto fault_on = [](int rank, const std::string& operation) {
    return Start{
        .environment = {"ALIQUOT_FAULT=rank=" + std::to_string(rank) + ",step=2,op=" + operation + ",kind=nan"}};
  };
  for (const std::string options : {"--model llama-nano --tied off --precision fp16 --zero-stage 3",
                                    "--model gpt2-nano --tied on --precision fp16 --zero-stage 1",
                                    "--model gpt2-nano --tied on --optimizer muon --zero-stage 0"}) {
    const RunResults alone = train(2, options, fault_on(1, "backward"));
    EXPECT_EQ(alone.skipped, std::vector{2}) << options;
    for (const auto& [stages, pipeline] : kPipelines) {
      for (const int stage : {0, 1, stages - 1}) {
        const std::string what = options + pipeline + ", NaN on stage " + std::to_string(stage);
        // Zero bubble splits the backward passes of blocks, which are on the pipeline stages between the ends.
        const bool splits = pipeline.find("zero-bubble") != std::string::npos && stage > 0 && stage + 1 < stages;
        const RunResults run =
            train(2 * stages, options + pipeline, fault_on(2 * stage + 1, splits ? "backward-weights" : "backward"));
        EXPECT_EQ(run.digest, alone.digest) << what;
        EXPECT_EQ(run.losses, alone.losses) << what;
        EXPECT_EQ(run.skipped, std::vector{2}) << what;
        expect_planned_is_measured(run, static_cast<std::size_t>(stages), what);
      }
    }
  }
}

}  // namespace
}  // namespace aliquot
