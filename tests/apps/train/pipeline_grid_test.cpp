// Tests all ZeRO stages, all orders of passes and several numbers of micro-batches on 2 and 4 pipeline stages, on
// threads and under mpirun, with tied and untied embeddings. For each number of micro-batches, all runs of a model have
// the digest of a run on one pipeline stage. Planned memory equals measured memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/apps/train/pipeline_runs.h"

namespace aliquot {
namespace {

using namespace pipeline_runs;

/// Compares all runs of the model on pipelines with its runs on one pipeline stage. Returns the number of runs on
/// pipelines.
int compare_with_one_stage(const std::string& model, bool launched) {
  int runs = 0;
  for (const int stages : {2, 4}) {
    for (const int micro_batches : {1, stages, 2 * stages + 1, 4 * stages}) {
      // Eight virtual stages need at least eight layers.
      const std::string common =
          fmt::format("{}{} --accumulate {}", model, stages == 4 ? " --layers 8" : "", micro_batches);
      const RunResults alone = train(1, common + " --zero-stage 3");
      for (const int zero_stage : {0, 1, 2, 3}) {
        for (const char* schedule : {"1f1b", "gpipe", "interleaved", "zero-bubble"}) {
          const std::string options = fmt::format("{} --zero-stage {} --pipeline {} --pipeline-schedule {}", common,
                                                  zero_stage, stages, schedule);
          const RunResults run = train(stages, options, {.launched = launched});
          expect_equal(run, alone, options);
          expect_planned_is_measured(run, static_cast<std::size_t>(stages), options);
          ++runs;
        }
      }
    }
  }
  return runs;
}

class PipelineGrid : public ::testing::TestWithParam<const char*> {};

TEST_P(PipelineGrid, GivesTheDigestOfOneStageOnThreads) { EXPECT_EQ(compare_with_one_stage(GetParam(), false), 128); }

TEST_P(PipelineGrid, GivesTheDigestOfOneStageUnderMpirun) {
  if (!test::has_mpi()) GTEST_SKIP() << "this build has no MPI";
  EXPECT_EQ(compare_with_one_stage(GetParam(), true), 128);
}

INSTANTIATE_TEST_SUITE_P(Models, PipelineGrid,
                         ::testing::Values("--model gpt2-nano --tied on", "--model gpt2-nano --tied off",
                                           "--model llama-nano --tied on", "--model llama-nano --tied off"));

}  // namespace
}  // namespace aliquot
