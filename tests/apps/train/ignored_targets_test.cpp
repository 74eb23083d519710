// Training on prompts and answers: the loss is the mean over the targets that count, on all ranks and micro-batches.
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "apps/data/token_file_writer.h"
#include "tests/apps/command_line.h"
#include "tests/apps/tokenize/support.h"

namespace aliquot::test {
namespace {

using testing::HasSubstr;

constexpr int kSequence = 16;

class IgnoredTargets : public testing::Test {
 protected:
  /// Writes `count` documents. With `masks`, the loss of document d counts from its token prompt(d) on.
  std::string write(const std::string& name, int count, bool masks, const std::function<int(int, int)>& prompt) {
    TokenFileWriter writer(folder_.path(name), 2);
    for (int document = 0; document < count; ++document) {
      std::vector<int32_t> tokens;
      for (int i = 0; i < 5 + document * 11 % 29; ++i) tokens.push_back((document * 31 + i * i) % 200);
      if (masks) {
        writer.append_with_loss_from(tokens, prompt(document, static_cast<int>(tokens.size())));
      } else {
        writer.append(tokens);
      }
    }
    writer.finish({.vocabulary_size = 200});
    return folder_.path(name);
  }
  static int short_answers(int document, int length) { return length - 1 - document % 3; }

  CommandResult train(const std::string& data, std::vector<std::string> words) {
    words.insert(words.begin(),
                 {"train", "--data",         data,  "--layers",   "2",    "--width",       "32", "--heads",
                  "2",     "--vocab",        "200", "--sequence", "16",   "--steps",       "3",  "--threads",
                  "1",     "--global-batch", "8",   "--lr",       "1e-3", "--reproducible"});
    return run_aliquot(words);
  }
  static std::string digest(const CommandResult& result) {
    const size_t found = result.out.find("\ndigest ");
    EXPECT_NE(found, std::string::npos) << result.out << result.err;
    return found == std::string::npos ? "" : result.out.substr(found + 1, 71);
  }
  /// The numbers of the steps in a file of --metrics.
  static std::vector<double> numbers(const std::string& metrics, const char* key) {
    std::ifstream file(metrics);
    std::vector<double> found;
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains("step") && json.contains(key)) found.push_back(json[key]);
    }
    return found;
  }

  const TestFolder folder_;
};

/// The number of counted targets differs between ranks and micro-batches: most sequences have a few, some have none.
TEST_F(IgnoredTargets, EveryDivisionOfTheBatchGivesTheSameBits) {
  const std::string data = write("a.h5", 90, true, short_answers);
  const std::string expected = digest(train(data, {"--ranks", "1", "--micro-batch", "1"}));
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--ranks", "2", "--micro-batch", "1", "--zero-stage", "2"},
        {"--ranks", "4", "--micro-batch", "1", "--zero-stage", "3"},
        {"--ranks", "8", "--micro-batch", "1", "--zero-stage", "1"},
        {"--ranks", "2", "--micro-batch", "1", "--pipeline", "2"},
        {"--ranks", "4", "--micro-batch", "1", "--replicas", "2", "--zero-stage", "3"}})
    EXPECT_EQ(digest(train(data, words)), expected) << testing::PrintToString(words);
  EXPECT_NE(digest(train(write("plain.h5", 90, false, {}), {"--ranks", "1", "--micro-batch", "1"})), expected);
}

/// One micro-batch of all sequences needs no weights of micro-batches: its mean is that of one loss.
TEST_F(IgnoredTargets, MicroBatchesAddUpToTheMeanOfTheWholeBatch) {
  for (const std::string model : {"gpt2-nano", "llama-nano"}) {
    const std::string data = write(model + ".h5", 90, true, short_answers);
    std::vector<std::vector<double>> losses, norms;
    for (const std::vector<std::string>& split :
         {std::vector<std::string>{"1", "8"}, {"1", "1"}, {"2", "2"}, {"4", "1"}}) {
      const std::string metrics = folder_.path(model + split[0] + split[1] + ".jsonl");
      const CommandResult result =
          train(data, {"--model", model, "--ranks", split[0], "--micro-batch", split[1], "--metrics", metrics});
      ASSERT_EQ(result.code, 0) << result.err;
      losses.push_back(numbers(metrics, "loss"));
      norms.push_back(numbers(metrics, "grad_norm"));
      ASSERT_EQ(losses.back().size(), 3u);
      for (size_t step = 0; step < 3; ++step) {
        // AdamW enlarges rounding errors of gradients that are nearly 0.
        const double bound = step == 0 ? 1e-6 : 1e-4;
        EXPECT_NEAR(losses.back()[step], losses[0][step], bound * losses[0][step]);
        EXPECT_NEAR(norms.back()[step], norms[0][step], 10 * bound * norms[0][step]);
      }
    }
  }
}

TEST_F(IgnoredTargets, AFileInWhichAllTokensCountTrainsLikeOneWithoutRanges) {
  const std::string all = write("all.h5", 90, true, [](int, int) { return 0; });
  const std::string plain = write("plain.h5", 90, false, {});
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--ranks", "2", "--micro-batch", "1"}, {"--ranks", "1", "--micro-batch", "4"}})
    EXPECT_EQ(digest(train(all, words)), digest(train(plain, words)));
}

/// Validation with all tokens, and with the answers: the mean over all targets is the sum over both kinds.
TEST_F(IgnoredTargets, TheValidationLossIsTheMeanOverTheCountedTargets) {
  const auto prompts = [](int, int length) { return length / 2; };
  const std::string data = write("a.h5", 90, true, prompts);
  for (const std::string ranks : {"1", "2"}) {
    const std::string metrics = folder_.path("eval" + ranks + ".jsonl");
    const CommandResult result =
        train(data, {"--ranks", ranks, "--micro-batch", "2", "--eval-data", data, "--eval-every", "1", "--eval-batches",
                     ranks == "1" ? "4" : "2", "--metrics", metrics});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(numbers(metrics, "eval_loss").size(), 3u);
  }
  const auto one = numbers(folder_.path("eval1.jsonl"), "eval_loss"),
             two = numbers(folder_.path("eval2.jsonl"), "eval_loss");
  EXPECT_EQ(one, two);
}

TEST_F(IgnoredTargets, DataWithoutCountedTargetsIsReported) {
  // Only the last token of the file counts.
  TokenFileWriter writer(folder_.path("late.h5"), 2);
  writer.append_with_loss_from(std::vector<int32_t>(40 * kSequence, 5), 40 * kSequence - 1);
  writer.finish({.vocabulary_size = 200});
  const std::string late = folder_.path("late.h5");
  const CommandResult evaluated =
      train(late, {"--micro-batch", "1", "--eval-data", late, "--eval-every", "1", "--eval-batches", "2"});
  EXPECT_EQ(evaluated.code, 1);
  EXPECT_THAT(evaluated.err, HasSubstr("none of the tokens of the first 2 sequences counts in the loss"));
  const CommandResult trained = train(late, {"--micro-batch", "1", "--shuffle", "off"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.out + trained.err, HasSubstr("step 1 has no target whose loss counts"));
}

}  // namespace
}  // namespace aliquot::test
