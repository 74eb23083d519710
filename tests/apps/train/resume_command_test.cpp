// aliquot train --resume: what may differ from the run that saved, and what is said of it.
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

TEST_F(Resume, NothingIsSaidWhereNothingDiffers) {
  const test::CommandResult result = resume({});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
}

/// Nothing was measured, so nothing is said of it.
TEST_F(Resume, AFinishedRunSaysItsDigestAlone) {
  const test::CommandResult result =
      test::run_aliquot({"train", "--layers", "1", "--width", "16", "--heads", "2", "--context", "16", "--micro-batch",
                         "1", "--threads", "1", "--steps", "3", "--resume", saved()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("digest "), std::string::npos);
  EXPECT_EQ(result.out.find("measured"), std::string::npos) << result.out;
}

TEST_F(Resume, WhatChangesTheResultIsSaid) {
  const test::CommandResult result =
      resume({"--steps",   "6",    "--lr",           "1e-3", "--min-lr",    "1e-5", "--betas",    "0.5,0.6",
              "--eps",     "1e-7", "--weight-decay", "0",    "--clip",      "0.5",  "--warmup",   "3",
              "--shuffle", "off",  "--seed",         "2",    "--precision", "bf16", "--decay-all"});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* what :
       {"steps (there 3, here 6)", "lr (there", "min_lr (there", "betas (there", "eps (there", "weight_decay (there",
        "clip (there 1, here 0.5)", "warmup (there 0, here 3)", "shuffle (there on, here off)",
        "seed (there 1, here 2)", "precision (there fp32, here bf16)", "decay_all (there off, here on)"})
    EXPECT_NE(result.err.find(what), std::string::npos) << what << "\n" << result.err;
}

/// What it lacks begins with zeros, if that is asked for; what it does not need is left.
TEST_F(Resume, AnotherOptimizerGoesOn) {
  for (const char* other : {"lion", "sgd", "muon", "adamw8bit"}) {
    const test::CommandResult result = resume({"--optimizer", other, "--steps", "6", "--allow-missing"});
    EXPECT_EQ(result.code, 0) << other << ": " << result.err;
    EXPECT_NE(result.err.find(fmt::format("optimizer (there adamw, here {})", other)), std::string::npos) << result.err;
  }
  const test::CommandResult lion = resume({"--optimizer", "lion", "--steps", "6", "--checkpoint-dir", saved()});
  EXPECT_NE(lion.err.find("besides, which no optimizer here needs"), std::string::npos) << lion.err;
  EXPECT_EQ(lion.code, 0);
  const test::CommandResult refused = resume({"--optimizer", "adamw", "--steps", "9"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("exp_avg_sq"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("--allow-missing"), std::string::npos) << refused.err;
  const test::CommandResult back = resume({"--optimizer", "adamw", "--steps", "9", "--allow-missing"});
  EXPECT_EQ(back.code, 0) << back.err;
  EXPECT_NE(back.err.find("they start as zeros"), std::string::npos) << back.err;
}

TEST_F(Resume, AnotherShapeIsRefusedInAFewWords) {
  const test::CommandResult result = resume({"--layers", "12", "--width", "32"});
  EXPECT_EQ(result.code, 1);
  EXPECT_LT(result.err.size(), 2000u) << result.err;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  for (const char* what : {" more", "--model and its shape", "aliquot checkpoint show"})
    EXPECT_NE(result.err.find(what), std::string::npos) << what << "\n" << result.err;
}

TEST_F(Resume, HeadsAreAPartOfTheShape) {
  for (const char* how : {"--resume", "--init"}) {
    const test::CommandResult result = train({how, saved(), "--heads", "4"});
    EXPECT_EQ(result.code, 1) << how;
    EXPECT_NE(result.err.find("give --heads 2"), std::string::npos) << result.err;
  }
}

}  // namespace
}  // namespace aliquot
