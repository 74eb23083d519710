// Tests aliquot train and plan with pipelines. At every ZeRO stage, digest and losses do not depend on the number of
// pipeline stages, on the order of passes, or on whether ranks are threads or processes. Planned memory equals measured
// memory on every pipeline stage.
#include <fstream>
#include <gtest/gtest.h>

#include "checkpoint/save.h"
#include "tests/apps/train/pipeline_runs.h"
#include "tests/support/all_cases.h"

namespace aliquot {
namespace {

using namespace pipeline_runs;

TEST(PipelineCommand, PipelinesGiveTheDigestOfOneStageOnThreads) {
  test::CaseSelection selection(2);
  for (const std::string model : {"gpt2-nano", "llama-nano"}) {
    for (const std::string more : {"0 --tied off", "1 --tied on", "3 --tied off", "3 --tied on"}) {
      const std::string common = "--model " + model + " --zero-stage " + more;
      const RunResults alone = train(2, common);
      EXPECT_EQ(alone.losses.size(), 3u);
      EXPECT_EQ(alone.eval_losses.size(), 2u);  // after step 2, and after the last step
      for (const std::string pipeline :
           {"--pipeline 2", "--pipeline 2 --pipeline-schedule gpipe", "--pipeline 2 --pipeline-schedule interleaved",
            "--pipeline 3 --pipeline-cut 2,2,2", "--pipeline 4 --recompute block"}) {
        if (!selection.next()) continue;
        const int stages = pipeline[11] - '0';
        const std::string options =
            common + (model == "gpt2-nano" && stages == 3 ? " --pipeline 3 --pipeline-cut 2,3,2" : " " + pipeline);
        const RunResults run = train(2 * stages, options);
        expect_equal(run, alone, options);
        expect_planned_is_measured(run, static_cast<std::size_t>(stages), options);
      }
    }
  }
}

TEST(PipelineCommand, PipelinesGiveTheDigestOfOneStageUnderMpirun) {
  if (!test::has_mpi()) GTEST_SKIP() << "this build has no MPI";
  test::CaseSelection selection(2);
  for (const std::string common :
       {"--model llama-nano --zero-stage 2 --tied off", "--model gpt2-nano --zero-stage 3"}) {
    const RunResults alone = train(1, common);
    for (const std::string pipeline :
         {"--pipeline 2", "--pipeline 4 --pipeline-schedule gpipe", "--pipeline 2 --pipeline-schedule interleaved"}) {
      if (!selection.next()) continue;
      const int stages = pipeline[11] - '0';
      const std::string options = common + " " + pipeline;
      const RunResults run = train(stages, options, {.launched = true});
      expect_equal(run, alone, options);
      expect_planned_is_measured(run, static_cast<std::size_t>(stages), options);
    }
  }
}

/// With tied embeddings and `--reproducible`, all pipelines give the digest of a run without a pipeline. If full
/// gradients are accumulated, all pipelines give the same digest, but a run without a pipeline gives a
/// different digest.
TEST(PipelineCommand, TiedEmbeddingsGiveTheSameDigestOnAllPipelines) {
  const std::string common = "--model llama-nano --zero-stage 1 ";
  const std::string alone = train(2, common + "--accumulate-into auto --reproducible").digest;
  const std::string full = common + "--accumulate-into full";
  const std::string piped = train(4, full + " --pipeline 2").digest;
  EXPECT_NE(piped, train(2, full).digest);
  for (const std::string pipeline : {" --pipeline 2", " --pipeline 3", " --pipeline 3 --pipeline-schedule gpipe",
                                     " --pipeline 2 --pipeline-schedule interleaved"}) {
    const int ranks = 2 * (pipeline[12] - '0');
    EXPECT_EQ(train(ranks, common + "--accumulate-into auto --reproducible" + pipeline).digest, alone) << pipeline;
    EXPECT_EQ(train(ranks, full + pipeline).digest, piped) << pipeline;
  }
}

/// A checkpoint has the same bytes for any number of pipeline stages, and any number of pipeline stages loads it.
class PipelineCheckpoints : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, PipelineCheckpoints,
                         testing::Values("adamw", "adamw8bit", "lion", "muon", "adamw --state bf16",
                                         "adamw --precision fp16"));

TEST_P(PipelineCheckpoints, DoNotDependOnThePipeline) {
  const std::string common = "train --optimizer " + std::string(GetParam()) +
                             " --model llama-nano --tied off --steps 4 --layers 2 --width 16 --heads 2 --context 16 "
                             "--global-batch 8 --micro-batch 1 --threads 1 --quiet --accumulate-into shard";
  const auto run = [&](const std::string& options) {
    std::vector<std::string> words = words_of(common + " " + options);
    const test::CommandResult result = test::run_aliquot(words);
    EXPECT_EQ(result.code, 0) << options << "\n" << result.err;
    return result.out;
  };
  const test::TemporaryDirectory directory;
  const std::string a = directory.path() / "a", b = directory.path() / "b";
  const std::string whole = run("--ranks 2 --zero-stage 3");
  run("--ranks 2 --zero-stage 3 --stop-after 2 --checkpoint-dir " + a);
  run("--ranks 4 --pipeline 2 --pipeline-schedule zero-bubble --zero-stage 1 --stop-after 2 --checkpoint-dir " + b);
  const std::string file = "/" + checkpoint_name(2) + "/state.h5";
  EXPECT_TRUE(test::read_file(a + file) == test::read_file(b + file));
  EXPECT_EQ(
      run("--ranks 4 --pipeline 2 --pipeline-schedule interleaved --zero-stage 2 --resume auto --checkpoint-dir " + a),
      whole);
  EXPECT_EQ(run("--ranks 6 --pipeline 3 --zero-stage 0 --resume auto --checkpoint-dir " + b), whole);
}

TEST(PipelineCommand, PlanWritesAnOrderThatTrainReads) {
  const test::TemporaryDirectory directory;
  const std::string file = directory.path() / "order";
  const std::string model = " --model llama-nano --tied off --layers 3 --width 16 --heads 2 --context 16";
  const test::CommandResult planned =
      test::run_aliquot(words_of("plan --ranks 2 --pipeline 2 --accumulate 4 --pipeline-order " + file + model));
  ASSERT_EQ(planned.code, 0) << planned.err;
  EXPECT_EQ(test::read_file(file), "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n");
  EXPECT_NE(planned.out.find("pipeline stage"), std::string::npos) << planned.out;
  const std::string train = "train --steps 2 --quiet --threads 1 --micro-batch 1 --accumulate 4 --ranks 2 --pipeline 2";
  const std::string plain = test::run_aliquot(words_of(train + model)).out;
  EXPECT_EQ(test::run_aliquot(words_of(train + model + " --pipeline-order-from " + file)).out, plain);
  std::ofstream(file) << "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B3,1F3,1B2\n";
  const test::CommandResult refused = test::run_aliquot(words_of(train + model + " --pipeline-order-from " + file));
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("pass order of rank 1: 1B3 precedes 1F3"), std::string::npos) << refused.err;
}

/// A slow stage gets fewer uses, and the rates of links decide when transfers start. Neither changes a result.
TEST(PipelineCommand, TrainPlansWithTheRatesOfAMachineAndAProfile) {
  const test::TemporaryDirectory directory;
  const std::string profile = directory.path() / "profile", machine = directory.path() / "machine";
  const std::string model =
      " --model llama-nano --tied off --layers 6 --width 16 --heads 2 --context 16 --micro-batch 1";
  const std::string alone = "train --quiet --threads 1 --steps 4 --ranks 1 --metrics " + profile;
  ASSERT_EQ(test::run_aliquot(words_of(alone + model)).code, 0);
  std::ofstream(machine) << R"({"inside_node": {"bytes_per_second": 1e6, "latency_seconds": 1e-4}})";
  const std::string shape = model + " --ranks 2 --pipeline 2 --accumulate 4 --pipeline-schedule gpipe";
  const std::string rates = " --machine " + machine + " --profile " + profile;
  const auto schedule = [&](const std::string& options) {
    const std::string text = test::run_aliquot(words_of("train --dry-run --threads 1" + shape + options)).out;
    return text.substr(text.find("\npipeline-cut"));
  };
  EXPECT_NE(schedule(""), schedule(rates));
  const std::string train = "train --steps 2 --quiet --threads 1" + shape;
  const test::CommandResult plain = test::run_aliquot(words_of(train)),
                            timed = test::run_aliquot(words_of(train + rates));
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(timed.out, plain.out) << timed.err;
  const test::CommandResult missing = test::run_aliquot(words_of(train + " --profile " + profile + ".none"));
  EXPECT_EQ(missing.code, 1);
  EXPECT_NE(missing.err.find("the file cannot be read"), std::string::npos) << missing.err;
}

/// Without --virtual-stages, train derives the number of virtual stages from the passes in the order file.
TEST(PipelineCommand, PlanWritesAnInterleavedOrderThatTrainReads) {
  const test::TemporaryDirectory directory;
  const std::string file = directory.path() / "order";
  const std::string model = " --model llama-nano --tied off --layers 3 --width 16 --heads 2 --context 16";
  const std::string planned =
      "plan --ranks 2 --pipeline 2 --accumulate 2 --pipeline-schedule interleaved --pipeline-order " + file + model;
  ASSERT_EQ(test::run_aliquot(words_of(planned)).code, 0);
  EXPECT_EQ(test::read_file(file), "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1\n");
  const std::string train = "train --steps 2 --quiet --threads 1 --micro-batch 1 --accumulate 2 --ranks 2 --pipeline 2";
  const std::string plain = test::run_aliquot(words_of(train + model)).out;
  EXPECT_EQ(test::run_aliquot(words_of(train + model + " --pipeline-order-from " + file)).out, plain);
  const test::CommandResult refused =
      test::run_aliquot(words_of(train + model + " --virtual-stages 1 --pipeline-order-from " + file));
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("2F0 names virtual stage 2: expected 0 to 1"), std::string::npos) << refused.err;
}

/// Background saves need memory for a snapshot. Its size depends on the number of ranks in a shard group.
TEST(PipelineCommand, BackgroundSavesUseThePlannedMemory) {
  for (const std::string zero_stage : {"0", "1", "3"}) {
    for (const std::string groups : {"--pipeline 2", "--replicas 2", "--pipeline 2 --replicas 2"}) {
      const test::TemporaryDirectory directory;
      const test::CommandResult result = test::run_aliquot(
          words_of("train --model llama-nano --layers 3 --width 16 --heads 2 --context 16 --micro-batch 1 "
                   "--threads 1 --steps 3 --ranks 4 --accumulate 2 --checkpoint-every 1 --save snapshot --zero-stage " +
                   zero_stage + " " + groups + " --checkpoint-dir " + (directory.path() / "c").string()));
      EXPECT_EQ(result.code, 0) << zero_stage << " " << groups << "\n" << result.err;
      EXPECT_NE(result.out.find("agree to the byte"), std::string::npos) << result.out;
    }
  }
}

TEST(PipelineCommand, PlanFindsTheLargestModelOfAPipeline) {
  for (const std::string cut : {"", " --pipeline-cut 3,4", " --pipeline-schedule gpipe"}) {
    const test::CommandResult result =
        test::run_aliquot(words_of("plan --model llama-nano --tied off --ranks 2 --pipeline 2 --accumulate 4 "
                                   "--device-memory 10MiB --machine host" +
                                   cut));
    EXPECT_EQ(result.code, 0) << cut << result.err;
    EXPECT_NE(result.out.find("largest model that fits"), std::string::npos) << result.out;
  }
}

TEST(PipelineCommand, InvalidPipelinesAreRefused) {
  const test::TemporaryDirectory directory;
  const std::string order = directory.path() / "order";
  const auto refusal = [](const std::string& options) {
    const test::CommandResult result = test::run_aliquot(words_of("train --steps 1 --quiet --threads 1 " + options));
    EXPECT_EQ(result.code, 1) << options;
    return result.err;
  };
  EXPECT_NE(refusal("--pipeline-order-from " + directory.path().string()).find("cannot be read"), std::string::npos);
  for (const int lines : {1, 3}) {
    std::ofstream file(order);
    for (int line = 0; line < lines; ++line) file << line << "F0," << line << "B0\r\n";
    file.close();
    EXPECT_NE(refusal("--ranks 2 --pipeline 2 --tied off --pipeline-order-from " + order)
                  .find("the pass order has lines for " + std::to_string(lines) + " ranks, but the pipeline has 2"),
              std::string::npos);
  }
  EXPECT_NE(refusal("--ranks 3 --pipeline 2").find("--pipeline 2 does not divide the number of ranks, 3"),
            std::string::npos);
  EXPECT_NE(refusal("--ranks 2 --pipeline 2 --layers 1 --pipeline-cut 1,4").find("unit wte is used on pipeline stages"),
            std::string::npos);
  EXPECT_NE(refusal("--ranks 2 --pipeline 2 --tied off --pipeline-cut 1,1").find("--pipeline-cut has 2 uses in all"),
            std::string::npos);
}

}  // namespace
}  // namespace aliquot
