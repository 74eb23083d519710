// Tests of `aliquot data` as a program.
#include <chrono>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <thread>

#include "apps/data/token_source.h"
#include "tests/apps/command_line.h"
#include "tests/apps/tokenize/support.h"

namespace aliquot::test {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;

std::vector<int32_t> tokens_in(const std::string& path) {
  const auto source = open_token_source(path);
  std::vector<int32_t> tokens(static_cast<size_t>(source->token_count()));
  source->read(0, tokens, 1 << 20);
  return tokens;
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class DataCommand : public testing::Test {
 protected:
  CommandResult run(std::vector<std::string> words) {
    words.insert(words.begin(), "data");
    words.insert(words.end(), {"--tokenizer", tokenizer_});
    return run_aliquot(words);
  }
  void refused(const std::vector<std::string>& words, const std::string& message) {
    const CommandResult result = run(words);
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_FALSE(std::filesystem::exists(out_));
  }
  /// JSON lines of `count` documents with numbers.
  std::string write_lines(const std::string& name, int count) {
    std::string lines;
    for (int i = 0; i < count; ++i) lines += "{\"text\": \"document " + std::to_string(i) + "\"}\n";
    return folder_.write_gzip(name, lines);
  }

  const TestFolder folder_;
  const std::string tokenizer_ = folder_.write("tokenizer.json", byte_tokenizer());
  const std::string out_ = folder_.path("out.h5");
};

TEST_F(DataCommand, WritesTheTokensOfAllDocuments) {
  const auto text = folder_.write("a.txt", "Ab"),
             lines = folder_.write("b.jsonl", "{\"text\": \"c\"}\n{\"text\": \"\"}\n");
  const CommandResult result = run({text, lines, "--out", out_});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 documents, 5 tokens"));
  EXPECT_THAT(result.out, HasSubstr("left out 1 document without text\n"));
  EXPECT_THAT(tokens_in(out_), ElementsAreArray({'A' + 1, 'b' + 1, 0, 'c' + 1, 0}));
  EXPECT_EQ(open_token_source(out_)->recorded_vocabulary(), 257);
  EXPECT_EQ(open_token_source(out_)->token_bytes(), 2);
}

TEST_F(DataCommand, LargeVocabulariesHave32BitTokens) {
  folder_.write("tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"a": 70000, "</s>": 1}, "merges": []}})");
  ASSERT_EQ(run({folder_.write("a.txt", "aa"), "--out", out_}).code, 0);
  EXPECT_THAT(tokens_in(out_), ElementsAreArray({70000, 70000, 1}));
  EXPECT_EQ(open_token_source(out_)->token_bytes(), 4);
  EXPECT_EQ(open_token_source(out_)->recorded_vocabulary(), 70001);
}

/// HDF5 can store times in seconds, so the files are made in different seconds.
TEST_F(DataCommand, TheNumberOfThreadsDoesNotChangeTheFiles) {
  const auto lines = write_lines("a.jsonl.gz", 90'000);
  std::vector<std::string> files;
  for (const std::string threads : {"1", "5"}) {
    for (const std::string name : {"train", "valid"}) files.push_back(folder_.path(name + threads + ".h5"));
    const CommandResult result = run({lines, "--threads", threads, "--out", files.end()[-2], "--validation",
                                      files.back(), "--validation-share", "0.1"});
    ASSERT_EQ(result.code, 0) << result.err;
    if (threads == "1") std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  }
  EXPECT_TRUE(bytes_of(files[0]) == bytes_of(files[2]));
  EXPECT_TRUE(bytes_of(files[1]) == bytes_of(files[3]));
  const auto train = tokens_in(files[0]), valid = tokens_in(files[1]);
  const auto documents = std::ranges::count(train, 0), held_out = std::ranges::count(valid, 0);
  EXPECT_EQ(documents + held_out, 90'000);
  EXPECT_NEAR(static_cast<double>(held_out), 9000, 400);
}

TEST_F(DataCommand, TokensBeforeAndBehindDocumentsCanBeChosen) {
  const auto text = folder_.write("a.txt", "A\nB\n");
  ASSERT_EQ(run({text, "--documents", "line", "--document-start", "<0x02>", "--separator", "none", "--out", out_}).code,
            0);
  EXPECT_THAT(tokens_in(out_), ElementsAreArray({3, 'A' + 1, 3, 'B' + 1}));
}

TEST_F(DataCommand, TrainReadsTheFileAndChecksTheVocabulary) {
  ASSERT_EQ(run({write_lines("a.jsonl.gz", 100), "--out", out_}).code, 0);
  const std::vector<std::string> train = {"train",      "--data", out_,        "--steps", "1",
                                          "--sequence", "16",     "--threads", "1"};
  auto fits = train, small = train;
  fits.insert(fits.end(), {"--vocab", "257"});
  small.insert(small.end(), {"--vocab", "256", "--dry-run"});
  const CommandResult good = run_aliquot(fits), bad = run_aliquot(small);
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.err,
              HasSubstr("was written with a tokenizer of 257 tokens, but the model's vocabulary has 256 entries"));
}

TEST_F(DataCommand, OnlyAnswersAndSeparatorsCountInTheLoss) {
  const auto lines = folder_.write("chat.jsonl", R"({"q": "ab", "a": "cde"}
{"q": "f", "a": "g"}
)");
  const CommandResult result = run({lines, "--prompt-field", "q", "--answer-field", "a", "--out", out_});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 documents, 9 tokens, 6 of them in answers and separators"));
  const auto source = open_token_source(out_);
  std::vector<int32_t> targets = tokens_in(out_);
  source->ignore_targets(0, targets);
  EXPECT_THAT(targets, ElementsAreArray({-1, -1, 'c' + 1, 'd' + 1, 'e' + 1, 0, -1, 'g' + 1, 0}));
}

TEST_F(DataCommand, TheValidationFileHasItsOwnAnswers) {
  std::string lines;
  for (int i = 0; i < 400; ++i)
    lines += R"({"prompt": "ab", "answer": "c"})"
             "\n";
  const std::string validation = folder_.path("valid.h5");
  ASSERT_EQ(run({folder_.write("chat.jsonl", lines), "--prompt-field", "prompt", "--answer-field", "answer", "--out",
                 out_, "--validation", validation, "--validation-share", "0.3"})
                .code,
            0);
  for (const std::string& file : {out_, validation}) {
    std::vector<int32_t> targets = tokens_in(file);
    open_token_source(file)->ignore_targets(0, targets);
    for (size_t i = 0; i < targets.size(); ++i) ASSERT_EQ(targets[i], i % 4 < 2 ? -1 : i % 4 == 2 ? 'c' + 1 : 0);
  }
}

TEST_F(DataCommand, InvalidOptionsAreRefused) {
  const auto text = folder_.write("a.txt", "A");
  refused({"--out", out_}, "no text was given");
  refused({text}, "--out is missing");
  refused({text, "--out", folder_.path("x.bin")}, "for --out: expected a name that ends in .h5");
  refused({text, "--out", out_, "--validation", out_}, "--out and --validation name the same file");
  refused({text, "--out", folder_.path("none/x.h5")},
          "--out " + folder_.path("none/x.h5") + ": cannot open directory " + folder_.path("none"));
  refused({text, "-j", "8", "--out", out_}, "unknown option -j. Use --threads.");
  refused({text, "--out", out_, "--validation-share", "0.5"},
          "--validation-share has no effect without --validation: give --validation FILE, or leave --validation-share "
          "out.");
  refused({text, "--out", out_, "--separator", "<x>"}, "--separator <x>: the tokenizer has no such token");
  refused({text, "--out", out_, "--document-start", "<x>"}, "--document-start <x>: the tokenizer has no such token");
  refused({text, "--out", out_, "--documents", "page"}, "--documents");
  refused({text, "--out", out_, "--prompt-field", "q"}, "--prompt-field and --answer-field belong together");
  refused({text, "--out", out_, "--prompt-field", "q", "--answer-field", "q"}, "name the same field");
  refused({text, "--out", out_, "--prompt-field", "q", "--answer-field", "a", "--text-field", "t"},
          "--text-field has no effect");
  refused({text, "--out", out_, "--prompt-field", "q", "--answer-field", "a"}, "must be JSON lines");
  refused({text, "--out", out_, "--validation", folder_.path("v.h5")}, "leaves no document for --validation");
  refused({text, "--out", out_, "--validation", folder_.path("v.h5"), "--validation-share", "1"},
          "no document for --out");
  refused({folder_.path("missing.txt"), "--out", out_}, "missing.txt: the file cannot be read: No such file");
  refused({folder_.write("empty.txt", ""), "--out", out_}, "the files have no text");
  EXPECT_THAT(run_aliquot({"data", text, "--out", out_}).err, HasSubstr("--tokenizer is missing"));
  folder_.write("tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"A": 0}, "merges": []}})");
  refused({text, "--out", out_}, "name one with --separator, or use --separator none");
}

TEST_F(DataCommand, ExistingFilesAreKept) {
  const auto text = folder_.write("a.txt", "A"), existing = folder_.write("old.h5", "old");
  const CommandResult result = run({text, "--out", existing});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("old.h5 already exists: remove it, or name another file"));
  EXPECT_EQ(bytes_of(existing), "old");
}

/// Learning reads all text, so the files are checked before it: the error is not that of the text.
TEST_F(DataCommand, FilesAreCheckedBeforeATokenizerIsLearned) {
  const auto text = folder_.write("a.txt", "\xff"), existing = folder_.write("old.h5", "old");
  const CommandResult result = run_aliquot({"data", text, "--learn-tokenizer", "300", "--out", existing});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("old.h5 already exists: remove it, or name another file"));
}

TEST_F(DataCommand, ErrorsInJsonNameTheLineAndTheColumn) {
  refused({folder_.write("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"\n"), "--out", out_},
          "a.jsonl:2: the line is not JSON: parse error at column 13: syntax error");
}

TEST_F(DataCommand, ErrorsLeaveNoFiles) {
  const auto lines = folder_.write("a.jsonl", "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n");
  refused({lines, "--out", out_}, "a.jsonl:2: the field 'text' is missing: name the field with --text-field");
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_.path(""))) ++count;
  EXPECT_EQ(count, 2u) << "only the input and the tokenizer";
}

}  // namespace
}  // namespace aliquot::test
