// Tests which options of aliquot train --resume may differ from the saved run, and how differences are reported.
#include <algorithm>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

class Resume : public testing::Test {
 protected:
  void SetUp() override {
    const test::CommandResult result = train({"--checkpoint-dir", saved()});
    ASSERT_EQ(result.code, 0) << result.err;
  }
  test::CommandResult train(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"train",     "--layers", "1",       "--width",       "16", "--heads",   "2",
                                      "--context", "16",       "--quiet", "--micro-batch", "1",  "--threads", "1",
                                      "--steps",   "3"};
    words.insert(words.end(), more.begin(), more.end());
    return test::run_aliquot(words);
  }
  test::CommandResult resume(std::vector<std::string> more) const {
    more.insert(more.end(), {"--resume", saved()});
    return train(more);
  }
  std::string saved() const { return (folder_.path() / "saved").string(); }
  test::TemporaryDirectory folder_;
};

TEST_F(Resume, PrintsNothingIfNoOptionDiffers) {
  const test::CommandResult result = resume({});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
}

/// If the checkpoint is that of the last step, the run trains no step. So it has no measured memory to print.
TEST_F(Resume, AFinishedRunPrintsOnlyItsDigest) {
  const test::CommandResult result =
      test::run_aliquot({"train", "--layers", "1", "--width", "16", "--heads", "2", "--context", "16", "--micro-batch",
                         "1", "--threads", "1", "--steps", "3", "--resume", saved()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("digest "), std::string::npos);
  EXPECT_EQ(result.out.find("measured"), std::string::npos) << result.out;
}

TEST_F(Resume, OptionsThatChangeTheResultAreReported) {
  const test::CommandResult result =
      resume({"--steps",   "6",    "--lr",           "1e-3", "--min-lr",    "1e-5", "--betas",    "0.5,0.6",
              "--eps",     "1e-7", "--weight-decay", "0",    "--clip",      "0.5",  "--warmup",   "3",
              "--shuffle", "off",  "--seed",         "2",    "--precision", "bf16", "--decay-all"});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* what :
       {"steps (checkpoint 3, this run 6)", "lr (checkpoint", "min_lr (checkpoint", "betas (checkpoint",
        "eps (checkpoint", "weight_decay (checkpoint", "clip (checkpoint 1, this run 0.5)",
        "warmup (checkpoint 0, this run 3)", "shuffle (checkpoint on, this run off)", "seed (checkpoint 1, this run 2)",
        "precision (checkpoint fp32, this run bf16)", "decay_all (checkpoint off, this run on)"})
    EXPECT_NE(result.err.find(what), std::string::npos) << what << "\n" << result.err;
}

/// With --allow-missing, optimizer state that the checkpoint lacks starts as zeros. Surplus state is ignored.
TEST_F(Resume, ARunMayResumeWithAnotherOptimizer) {
  for (const char* other : {"lion", "sgd", "muon", "adamw8bit"}) {
    const test::CommandResult result = resume({"--optimizer", other, "--steps", "6", "--allow-missing"});
    EXPECT_EQ(result.code, 0) << other << ": " << result.err;
    EXPECT_NE(result.err.find(fmt::format("optimizer (checkpoint adamw, this run {})", other)), std::string::npos)
        << result.err;
    EXPECT_LT(result.err.size(), 2500u) << result.err;
  }
  const test::CommandResult lion = resume({"--optimizer", "lion", "--steps", "6", "--checkpoint-dir", saved()});
  EXPECT_NE(lion.err.find("which the optimizer of this run does not use"), std::string::npos) << lion.err;
  EXPECT_EQ(lion.code, 0);
  const test::CommandResult refused = resume({"--optimizer", "adamw", "--steps", "9"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find(" was saved with another optimizer: lion, this run has adamw; missing from the "),
            std::string::npos)
      << refused.err;
  EXPECT_EQ(refused.err.find("Use the model of the saved run"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("exp_avg_sq"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("--allow-missing"), std::string::npos) << refused.err;
  const test::CommandResult back = resume({"--optimizer", "adamw", "--steps", "9", "--allow-missing"});
  EXPECT_EQ(back.code, 0) << back.err;
  EXPECT_NE(back.err.find("these tensors start as zeros"), std::string::npos) << back.err;
}

TEST_F(Resume, AnotherShapeIsRejectedWithAShortMessage) {
  const test::CommandResult result = resume({"--layers", "12", "--width", "32"});
  EXPECT_EQ(result.code, 1);
  EXPECT_LT(result.err.size(), 2000u) << result.err;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  for (const char* what : {" more", "Use the model of the saved run", "aliquot checkpoint show"})
    EXPECT_NE(result.err.find(what), std::string::npos) << what << "\n" << result.err;
}

/// Another optimizer does not hide that the model differs.
TEST_F(Resume, AnotherShapeIsRejectedAlsoWithAnotherOptimizer) {
  const test::CommandResult result = resume({"--optimizer", "adamw8bit", "--width", "32"});
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.err.find("Use the model of the saved run"), std::string::npos) << result.err;
}

TEST_F(Resume, AnotherNumberOfHeadsIsRejected) {
  for (const char* how : {"--resume", "--init"}) {
    const test::CommandResult result = train({how, saved(), "--heads", "4"});
    EXPECT_EQ(result.code, 1) << how;
    EXPECT_NE(result.err.find(" --heads 2."), std::string::npos) << result.err;
  }
}

}  // namespace
}  // namespace aliquot
