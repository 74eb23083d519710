// Tests that the command replaces names of EngineOptions and WorldOptions fields by flags in messages of the library.
#include "apps/options/flag_names.h"

#include <gtest/gtest.h>

#include "apps/options/train_options.h"

namespace aliquot {
namespace {

TEST(FlagNames, ReplaceFieldsOfEngineOptions) {
  EXPECT_EQ(with_flag_names("EngineOptions::zero_stage is 4: expected 0 to 3"), "--zero-stage is 4: expected 0 to 3");
  EXPECT_EQ(with_flag_names("set EngineOptions::accumulate_into to shard, or EngineOptions::accumulate to 1"),
            "set --accumulate-into to shard, or --accumulate to 1");
  EXPECT_EQ(with_flag_names("(limit EngineOptions::max_skipped)"), "(limit --max-skipped)");
  EXPECT_EQ(with_flag_names("raise EngineOptions::memory_budget_bytes."), "raise --memory-budget.");
  EXPECT_EQ(with_flag_names("EngineOptions::precision.reduce is fp32"), "--reduce-precision is fp32");
  EXPECT_EQ(with_flag_names("Engine::step() of EngineOptions"), "Engine::step() of EngineOptions");
  EXPECT_EQ(with_flag_names("WorldOptions::kind is nccl: set WorldOptions::device"), "--world is nccl: set --device");
  EXPECT_EQ(with_flag_names("set WorldOptions::threads_per_rank to 1. EngineOptions::check"),
            "set --threads to 1. ALIQUOT_CHECK");
  EXPECT_EQ(with_flag_names("EngineOptions::"), "--");
  EXPECT_EQ(with_flag_names(""), "");
}

TEST(FlagNames, EveryFlagIsAnOptionOfTrain) {
  TrainOptions options;
  const OptionTable table = train_option_table(options);
  for (const char* field : {"zero_stage",
                            "replicas",
                            "precision.compute",
                            "precision.gradients",
                            "precision.reduce",
                            "precision.master",
                            "accumulate",
                            "accumulate_into",
                            "prefetch",
                            "keep_gathered",
                            "gather_for",
                            "pipeline",
                            "pipeline_schedule",
                            "virtual_stages",
                            "pipeline_cut",
                            "recompute",
                            "gather",
                            "offload_state",
                            "offload_state_to",
                            "offload_parameters",
                            "offload_parameters_to",
                            "update_in_backward",
                            "reproducible",
                            "quantize_weights",
                            "quantize_gradients",
                            "memory_budget_bytes",
                            "optimizer",
                            "moments",
                            "clip",
                            "seed",
                            "max_skipped",
                            "check_state",
                            "graph",
                            "replay_every"}) {
    std::string flag = with_flag_names(std::string("EngineOptions::") + field);
    flag = flag.substr(0, flag.find(' '));
    ASSERT_TRUE(flag.starts_with("--")) << field << ": " << flag;
    EXPECT_NE(table.find(flag.substr(2)), nullptr) << field << ": " << flag;
  }
  for (const char* field : {"device", "kind", "threads_per_rank", "timeout_seconds"}) {
    const std::string flag = with_flag_names(std::string("WorldOptions::") + field);
    EXPECT_NE(table.find(flag.substr(2)), nullptr) << field << ": " << flag;
  }
}

}  // namespace
}  // namespace aliquot
