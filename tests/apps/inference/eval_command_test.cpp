// Runs aliquot eval.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "apps/data/token_file_writer.h"
#include "tests/apps/inference/support.h"

namespace aliquot::test {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Evaluation {
  double loss = 0, perplexity = 0;
  int64_t tokens = 0;
};

class EvalCommand : public InferenceTest {
 protected:
  static Evaluation evaluate(const std::string& words) {
    const std::string out = output_of("eval " + words);
    std::smatch match;
    const std::regex line(R"(loss (\S+), perplexity (\S+), over (\d+) tokens\n)");
    EXPECT_TRUE(std::regex_search(out, match, line)) << words << out;
    if (match.empty()) return {};
    return {std::stod(match[1]), std::stod(match[2]), std::stoll(match[3])};
  }
  std::string write_text(size_t count) const {
    std::string text;
    for (size_t i = 0; i < count; ++i) text += static_cast<char>('a' + (i * i + i / 7) % 26);
    std::ofstream(at("valid.txt")) << text;
    return at("valid.txt");
  }
};

TEST_F(EvalCommand, ShowsABarOnlyOnATerminal) {
  const std::string data = write_text(32 * 25 + 1);
  train("run");
  const std::vector<std::string> words{"eval", at("run"),       "--threads", "1",      "--sequence",
                                       "32",   "--micro-batch", "1",         "--data", data};
  const CommandResult shown = run_on_terminal(aliquot_program(), words, 100);
  EXPECT_EQ(shown.code, 0) << shown.out;
  EXPECT_THAT(shown.out, HasSubstr("\x1b[K"));
  EXPECT_THAT(shown.out, HasSubstr("[########################################] 25/25  "));
  const CommandResult piped = run_aliquot(words);
  EXPECT_THAT(piped.out, testing::Not(HasSubstr("25/25")));
  EXPECT_EQ(piped.err, "");
}

TEST_F(EvalCommand, EveryMeshGivesTheLossOfTraining) {
  const std::string data = write_text(32 * 25 + 20);  // 25 sequences, which no mesh below divides
  train("run", "--eval-data " + data + " --eval-batches 6 --metrics " + at("m.jsonl"));
  const std::string common = at("run") + " --threads 1 --sequence 32 --data " + data + " ";
  const Evaluation whole = evaluate(common);
  EXPECT_EQ(whole.tokens, 32 * 25);
  EXPECT_NEAR(whole.perplexity, std::exp(whole.loss), 1e-4 * whole.perplexity);
  for (const char* mesh : {"--ranks 2", "--ranks 3 --micro-batch 2", "--ranks 2 --zero-stage 0 --micro-batch 7",
                           "--micro-batch 40", "--ranks 2 --pipeline 2", "--ranks 2 --tensor 2",
                           "--ranks 4 --replicas 2", "--ranks 4 --pipeline 2 --tensor 2"}) {
    const Evaluation found = evaluate(common + mesh);
    EXPECT_EQ(found.tokens, whole.tokens) << mesh;
    EXPECT_NEAR(found.loss, whole.loss, 2e-6) << mesh;
  }
  // Training validated the same 24 sequences after its last step.
  std::ifstream metrics(at("m.jsonl"));
  double validation = 0;
  for (std::string line; std::getline(metrics, line);) {
    const auto json = nlohmann::json::parse(line);
    if (!json.contains("eval_loss")) continue;
    EXPECT_EQ(json["step"], 30);
    validation = json["eval_loss"];
  }
  EXPECT_NEAR(evaluate(common + "--sequences 24").loss, validation, 2e-6);
}

TEST_F(EvalCommand, ReadsExportsAndPrecisions) {
  const std::string data = write_text(700);
  train("run");
  output_of("checkpoint export " + at("run") + " --out " + at("hf"));
  const std::string common = " --threads 1 --data " + data;
  const Evaluation whole = evaluate(at("run") + common);
  EXPECT_EQ(whole.tokens, 640);  // the default sequence is the context of 64 tokens
  EXPECT_EQ(evaluate(at("hf") + common).loss, whole.loss);
  EXPECT_EQ(evaluate(at("run/step-00000030") + common).loss, whole.loss);
  const Evaluation rounded = evaluate(at("hf") + common + " --precision bf16");
  EXPECT_NEAR(rounded.loss, whole.loss, 0.01 * whole.loss);
  EXPECT_NE(rounded.loss, whole.loss);
}

TEST_F(EvalCommand, CountsOnlyTheTargetsThatTrainingCounts) {
  train("run");
  std::vector<int32_t> tokens;
  for (int i = 0; i < 129; ++i) tokens.push_back('a' + i * 7 % 26);
  TokenFileWriter all(at("all.h5"), 2), masked(at("masked.h5"), 2);
  all.append(tokens);
  masked.append_with_loss_from(tokens, 100);
  all.finish({.vocabulary_size = 256});
  masked.finish({.vocabulary_size = 256});
  const std::string common = at("run") + " --threads 1 --sequence 32 --data ";
  const double four = evaluate(common + at("all.h5")).loss * 128;
  const Evaluation of_masked = evaluate(common + at("masked.h5"));
  EXPECT_EQ(of_masked.tokens, 29);
  EXPECT_THAT(output_of("eval " + common + at("masked.h5")),
              HasSubstr("the loss of 29 tokens counts, that of 99 does not"));
  // The targets 100 to 128 are those of the last 29 places.
  EXPECT_LT(of_masked.loss * 29, four);
  EXPECT_NE(of_masked.loss, evaluate(common + at("all.h5")).loss);
}

/// The loss of such tokens has no meaning.
TEST_F(EvalCommand, DataOfAnotherTokenizerGetAWarning) {
  const std::string warning = "was encoded with another tokenizer than that of the weights, ";
  for (const auto& [name, text] : {std::pair("a", "the old man and the old sea and the man "),
                                   std::pair("b", "quick brown fox and quick brown fox jumps ")}) {
    write_file(at("text"), text + std::string(text));
    output_of("data " + at("text") + " --learn-tokenizer 265 --out " + at(name) + ".h5");
  }
  train("own", "--vocab 265 --steps 1 --sequence 8 --data " + at("a.h5"));
  const std::string common = " --threads 1 --sequence 8 --data ";
  EXPECT_EQ(run("eval " + at("own") + common + at("a.h5")).err, "");
  EXPECT_THAT(run("eval " + at("own") + common + at("b.h5")).err, HasSubstr("b.h5 (")) << "names the data";
  EXPECT_THAT(run("eval " + at("own") + common + at("b.h5")).err, HasSubstr(warning + at("own/tokenizer.json")));
  const std::string tune = "train --quiet --steps 1 --micro-batch 1 --init " + at("own") + common;
  EXPECT_THAT(run(tune + at("a.h5")).err, Not(HasSubstr(warning)));
  EXPECT_THAT(run(tune + at("b.h5")).err, HasSubstr(warning + at("own/tokenizer.json")));
  // The same tokenizer in the form of earlier versions, and one that gives the same words other tokens.
  const auto tokenizer = nlohmann::json::parse(read_file(at("own/tokenizer.json")));
  auto earlier = tokenizer, other = tokenizer;
  for (auto& merge : earlier.at("model").at("merges")) {
    ASSERT_TRUE(merge.is_array());
    merge = merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>();
  }
  other.at("pre_tokenizer")["add_prefix_space"] = true;
  write_file(at("own/tokenizer.json"), earlier.dump());
  EXPECT_EQ(run("eval " + at("own") + common + at("a.h5")).err, "");
  write_file(at("own/tokenizer.json"), other.dump());
  EXPECT_THAT(run("eval " + at("own") + common + at("a.h5")).err, HasSubstr(warning));
  // Neither command needs this tokenizer.
  std::filesystem::resize_file(at("own/tokenizer.json"), (int64_t{256} << 20) + 1);
  EXPECT_EQ(run("eval " + at("own") + common + at("a.h5")).err, "");
  output_of(tune + at("a.h5"));
}

TEST_F(EvalCommand, RefusesWhatCannotBeEvaluated) {
  const std::string data = write_text(100);
  train("run");
  expect_refusal("eval --data " + data, "eval needs one path");
  expect_refusal("eval " + at("run"), "--data is missing");
  expect_refusal("eval " + at("run") + " --data /no/such", "/no/such");
  expect_refusal("eval " + at("none") + " --data " + data, "found neither");
  expect_refusal("eval " + at("run") + " --data " + data + " --sequence 65", "longer than the model's context");
  expect_refusal("eval " + at("run") + " --sequence 64 --data " + write_text(60), "too short");
  TokenFileWriter large(at("large.h5"), 2);
  large.append(std::vector<int32_t>(100, 256));
  large.finish({.vocabulary_size = 257});
  expect_refusal("eval " + at("run") + " --data " + at("large.h5"), "257 tokens");
}

}  // namespace
}  // namespace aliquot::test
