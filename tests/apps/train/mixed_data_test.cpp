// Training on several weighted files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/command_line.h"
#include "tests/apps/tokenize/support.h"

namespace aliquot::test {
namespace {

using testing::HasSubstr;

class MixedData : public testing::Test {
 protected:
  static std::string text(int seed, size_t count) {
    std::string bytes;
    for (size_t i = 0; i < count; ++i) bytes += static_cast<char>('a' + (static_cast<size_t>(seed) * i + i / 7) % 26);
    return bytes;
  }
  /// Runs 4 steps of 8 sequences in all.
  CommandResult train(std::vector<std::string> words) {
    words.insert(words.begin(), {"train",          "--data", data_,       "--reproducible",
                                 "--global-batch", "8",      "--steps",   "4",
                                 "--layers",       "1",      "--width",   "32",
                                 "--heads",        "2",      "--vocab",   "256",
                                 "--sequence",     "16",     "--threads", "1"});
    return run_aliquot(words);
  }
  static std::string digest(const CommandResult& result) {
    const size_t found = result.out.find("\ndigest ");
    EXPECT_NE(found, std::string::npos) << result.out << result.err;
    return found == std::string::npos ? "" : result.out.substr(found + 1, 71);
  }

  const TestFolder folder_;
  const std::string a_ = folder_.write("a.txt", text(1, 4000)), b_ = folder_.write("b.txt", text(5, 900));
  std::string data_ = a_ + ":0.7," + b_ + ":0.3";
};

TEST_F(MixedData, EveryMeshTrainsOnTheSameSequences) {
  const std::string one = digest(train({"--ranks", "1", "--micro-batch", "1"}));
  EXPECT_EQ(one, digest(train({"--ranks", "4", "--zero-stage", "3", "--micro-batch", "1"})));
  EXPECT_EQ(one, digest(train({"--ranks", "4", "--replicas", "2", "--zero-stage", "2", "--micro-batch", "1"})));
  data_ = a_;
  EXPECT_NE(one, digest(train({"--ranks", "1", "--micro-batch", "1"})));
}

TEST_F(MixedData, AResumedRunContinuesWithTheSameSequences) {
  const std::string straight = digest(train({"--ranks", "2", "--micro-batch", "1"}));
  const std::vector<std::string> resumable = {"--ranks",  "2",    "--micro-batch",    "1",
                                              "--resume", "auto", "--checkpoint-dir", folder_.path("run")};
  auto first = resumable;
  first.insert(first.end(), {"--stop-after", "3"});
  ASSERT_EQ(train(first).code, 0);
  EXPECT_EQ(digest(train(resumable)), straight);
}

TEST_F(MixedData, ChangedWeightsAreReportedOnResume) {
  const std::vector<std::string> words = {"--resume", "auto", "--checkpoint-dir", folder_.path("run")};
  auto first = words;
  first.insert(first.end(), {"--stop-after", "2"});
  ASSERT_EQ(train(first).code, 0);
  data_ = a_ + ":0.6," + b_ + ":0.4";
  const CommandResult resumed = train(words);
  EXPECT_EQ(resumed.code, 0);
  EXPECT_THAT(resumed.out + resumed.err, HasSubstr("data_weights (checkpoint [0.7, 0.3], this run [0.6, 0.4])"));
}

TEST_F(MixedData, FilesOfDifferentTokenizersAreRefused) {
  std::vector<std::string> files;
  const auto add = [&](const std::string& name, const std::string& tokenizer) {
    files.push_back(folder_.path(name));
    const CommandResult made =
        run_aliquot({"data", a_, "--tokenizer", folder_.write("tokenizer.json", tokenizer), "--out", files.back()});
    ASSERT_EQ(made.code, 0) << made.err;
  };
  const std::string larger = std::string(byte_tokenizer()).insert(byte_tokenizer().find("\"</s>\""), "\"more\": 257, ");
  add("a.h5", byte_tokenizer());
  add("spaces.h5", byte_tokenizer() + " ");
  add("larger.h5", larger);
  data_ = files[0] + ":1," + files[1] + ":1";
  EXPECT_THAT(train({}).err, HasSubstr("were written with different tokenizers (SHA-256 "));
  data_ = files[0] + ":1," + files[2] + ":1";
  EXPECT_THAT(train({}).err, HasSubstr("were written with different tokenizers (of 257 and 258 tokens)"));
  data_ = files[0] + ":1," + a_ + ":1";
  EXPECT_THAT(train({"--dry-run"}).err, HasSubstr("was written with a tokenizer of 257 tokens"));
}

}  // namespace
}  // namespace aliquot::test
