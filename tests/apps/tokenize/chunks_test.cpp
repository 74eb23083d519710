// Reading and encoding of documents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/tokenize/chunk_encoder.h"
#include "apps/tokenize/chunk_reader.h"
#include "apps/tokenize/corpus_writer.h"
#include "apps/tokenize/ordered_workers.h"
#include "kernels/system/error.h"
#include "tests/apps/tokenize/support.h"

namespace aliquot::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Format = TextChunk::Format;

std::vector<TextChunk> chunks_of(const std::vector<std::filesystem::path>& files,
                                 DocumentUnit unit = DocumentUnit::kFile) {
  ChunkReader reader(files, unit);
  std::vector<TextChunk> chunks;
  while (auto chunk = reader.next()) chunks.push_back(std::move(*chunk));
  return chunks;
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(ChunkReader, NamesDetermineTheFormat) {
  const TestFolder folder;
  const auto chunks =
      chunks_of({folder.write("a.txt", "one\ntwo"), folder.write("b.jsonl", "{}\n"), folder.write("c.json", "{}"),
                 folder.write_gzip("d.ndjson.gz", "{}\n{}"), folder.write("e", "")});
  ASSERT_EQ(chunks.size(), 5u);
  EXPECT_EQ(chunks[0].format, Format::kDocument);
  EXPECT_EQ(chunks[0].text, "one\ntwo");
  for (const size_t i : {1, 2, 3}) EXPECT_EQ(chunks[i].format, Format::kJsonLines);
  EXPECT_EQ(chunks[3].text, "{}\n{}");
  EXPECT_EQ(chunks[4].text, "");
  const auto lines = chunks_of({folder.path("a.txt"), folder.path("b.jsonl")}, DocumentUnit::kLine);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].format, Format::kLines);
  EXPECT_EQ(lines[1].format, Format::kJsonLines);
}

TEST(ChunkReader, LongFilesAreCutBetweenLines) {
  const TestFolder folder;
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += "line " + std::to_string(i) + "\n";
  text += std::string(3 << 20, 'x') + "\nlast line";
  for (const std::string& file : {folder.write("a.txt", text), folder.write_gzip("b.txt.gz", text)}) {
    const auto chunks = chunks_of({file}, DocumentUnit::kLine);
    EXPECT_GT(chunks.size(), 2u);
    std::string joined;
    int64_t line = 1;
    for (const TextChunk& chunk : chunks) {
      EXPECT_EQ(chunk.first_line, line);
      line += std::ranges::count(chunk.text, '\n');
      joined += chunk.text;
      EXPECT_TRUE(chunk.text.ends_with('\n') || &chunk == &chunks.back());
    }
    EXPECT_TRUE(joined == text);
  }
}

TEST(ChunkReader, SeveralGzipMembersAreOneText) {
  const TestFolder folder;
  std::string members;
  for (const char* part : {"first ", "second"}) {
    std::ifstream file(folder.write_gzip("part.gz", part), std::ios::binary);
    members.append(std::istreambuf_iterator<char>(file), {});
  }
  EXPECT_EQ(chunks_of({folder.write("both.txt.gz", members)}).at(0).text, "first second");
}

TEST(ChunkReader, DamagedFilesAreRefused) {
  const TestFolder folder;
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += std::to_string(i * 7919) + " ";
  std::ifstream file(folder.write_gzip("good.gz", text), std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  const auto truncated = folder.write("cut.gz", good.substr(0, good.size() / 2));
  EXPECT_THAT(message_of([&] { chunks_of({truncated}); }), HasSubstr("cut.gz: the compressed file is truncated"));
  EXPECT_THAT(message_of([&] { chunks_of({truncated}, DocumentUnit::kLine); }), HasSubstr("truncated"));
  std::string damaged = good;
  for (size_t i = good.size() / 2; i < good.size() / 2 + 100; ++i) damaged[i] = 'x';
  EXPECT_THAT(message_of([&] { chunks_of({folder.write("bad.gz", damaged)}); }),
              HasSubstr("bad.gz: the compressed file is damaged"));
  std::string checksum = good;
  checksum[checksum.size() - 6] ^= 1;
  EXPECT_THAT(message_of([&] { chunks_of({folder.write("crc.gz", checksum)}); }), HasSubstr("damaged"));
  EXPECT_THAT(message_of([&] { chunks_of({folder.path("none")}); }),
              HasSubstr("none: the file cannot be read: No such file"));
  EXPECT_THAT(message_of([&] { chunks_of({folder.path("")}); }), HasSubstr("it is a directory"));
}

class Encoding : public testing::Test {
 protected:
  EncodedChunk encode(Format format, std::string text, int64_t first_line = 1) {
    return ChunkEncoder(tokenizer_, options_).encode({std::move(text), "f", first_line, format});
  }
  std::string refusal(Format format, const std::string& text) {
    return message_of([&] { encode(format, text, 10); });
  }

  const Tokenizer tokenizer_{byte_tokenizer(), "t.json"};
  EncodeOptions options_{.start = std::nullopt, .separator = 0};
};

TEST_F(Encoding, EachDocumentEndsWithTheSeparator) {
  const auto document = encode(Format::kDocument, "A\nB");
  EXPECT_THAT(document.tokens, ElementsAre('A' + 1, '\n' + 1, 'B' + 1, 0));
  EXPECT_THAT(document.document_ends, ElementsAre(4));
  EXPECT_EQ(document.text_bytes, 3);
  const auto lines = encode(Format::kLines, "A\r\n\nBC");
  EXPECT_THAT(lines.tokens, ElementsAre('A' + 1, 0, 'B' + 1, 'C' + 1, 0));
  EXPECT_THAT(lines.document_ends, ElementsAre(2, 5));
  EXPECT_EQ(lines.empty_count, 1);
  options_ = {.start = 7, .separator = std::nullopt};
  EXPECT_THAT(encode(Format::kLines, "A\nB\n").tokens, ElementsAre(7, 'A' + 1, 7, 'B' + 1));
}

TEST_F(Encoding, JsonLinesHaveAField) {
  const auto lines = encode(Format::kJsonLines,
                            "{\"text\": \"\\u0041\", \"x\": [1]}\n\n \t\r\n{\"text\": \"\"}\n{\"text\": \"B\"}\r\n");
  EXPECT_THAT(lines.tokens, ElementsAre('A' + 1, 0, 'B' + 1, 0));
  EXPECT_EQ(lines.empty_count, 1);
  options_.text_field = "content";
  EXPECT_THAT(encode(Format::kJsonLines, "{\"text\": 1, \"content\": \"C\"}").tokens, ElementsAre('C' + 1, 0));
}

TEST_F(Encoding, AnswersAreEncodedSeparatelyAndRemembered) {
  options_.prompt_field = "q";
  options_.answer_field = "a";
  options_.start = 7;
  const auto lines = encode(Format::kJsonLines,
                            "{\"q\": \"AB\", \"a\": \"C\"}\n{\"q\": \"A\", \"a\": \"\"}\n{\"q\": \"\", \"a\": \"D\"}");
  EXPECT_THAT(lines.tokens, ElementsAre(7, 'A' + 1, 'B' + 1, 'C' + 1, 0, 7, 'D' + 1, 0));
  EXPECT_THAT(lines.document_ends, ElementsAre(5, 8));
  EXPECT_THAT(lines.answer_begins, ElementsAre(3, 6));
  EXPECT_EQ(lines.empty_count, 1);
  EXPECT_THAT(refusal(Format::kJsonLines, "{\"q\": \"A\"}"),
              HasSubstr("f:10: the field 'a' is missing: name the field with --answer-field"));
  EXPECT_THAT(refusal(Format::kJsonLines, "{\"a\": \"A\"}"),
              HasSubstr("f:10: the field 'q' is missing: name the field with --prompt-field"));
  EXPECT_THAT(refusal(Format::kJsonLines, "{\"q\": 1, \"a\": \"A\"}"),
              HasSubstr("the field 'q' is 1: expected a string"));
  EXPECT_THAT(refusal(Format::kLines, "A"), HasSubstr("f: prompts and answers must be JSON lines"));
}

TEST_F(Encoding, InvalidLinesAreRefusedWithTheirNumber) {
  EXPECT_THAT(refusal(Format::kJsonLines, "{\"text\": \"a\"}\n{\"text\""), HasSubstr("f:11: the line is not JSON"));
  EXPECT_THAT(refusal(Format::kJsonLines, "[]"), HasSubstr("f:10: the line is not a JSON object"));
  EXPECT_THAT(refusal(Format::kJsonLines, "{\"x\": 1}"), HasSubstr("f:10: the field 'text' is missing"));
  EXPECT_THAT(refusal(Format::kJsonLines, "{\"text\": 12}"), HasSubstr("the field 'text' is 12: expected a string"));
  EXPECT_THAT(refusal(Format::kJsonLines, std::string("{\"text\": \"a\"}\0x", 15)), HasSubstr("NUL"));
  EXPECT_THAT(refusal(Format::kJsonLines, "{\"text\": \"\\ud800\"}"), HasSubstr("f:10: the line is not JSON"));
  EXPECT_THAT(refusal(Format::kLines, "a\nb\xff\n"), HasSubstr("f:11: byte 1 is not UTF-8"));
  EXPECT_THAT(refusal(Format::kDocument, "abc\x80"), HasSubstr("f: byte 3 is not UTF-8"));
}

TEST(OrderedWorkers, OutputsHaveTheOrderOfTheInputs) {
  OrderedWorkers<int, int> workers(4, [] {
    return [](const int& input) {
      if (input % 7 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      return 2 * input;
    };
  });
  int pushed = 0;
  for (int expected = 0; expected < 300; ++expected) {
    while (pushed < 300 && workers.pending_count() < 8) workers.push(pushed++);
    ASSERT_EQ(workers.pop(), 2 * expected);
  }
  EXPECT_EQ(workers.pending_count(), 0u);
}

TEST(OrderedWorkers, ErrorsBelongToTheirInput) {
  OrderedWorkers<int, int> workers(
      2, [] { return [](const int& input) -> int { return input == 3 ? throw UsageError("three") : input; }; });
  for (int i = 0; i < 6; ++i) workers.push(i);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(workers.pop(), i);
  EXPECT_THROW(workers.pop(), UsageError);
  EXPECT_EQ(workers.pop(), 4);
}

TEST(OrderedWorkers, PendingInputsAreDroppedAtTheEnd) {
  OrderedWorkers<int, int> workers(2, [] { return [](const int& input) { return input; }; });
  for (int i = 0; i < 100; ++i) workers.push(i);
}

TEST(CorpusWriter, TheShareOfValidationDocumentsIsAsRequested) {
  for (const double share : {0.01, 0.5}) {
    int count = 0;
    for (int64_t i = 0; i < 100'000; ++i) count += is_validation_document(i, share);
    EXPECT_NEAR(count, 100'000 * share, 500) << share;
  }
  EXPECT_TRUE(is_validation_document(5, 1));
}

}  // namespace
}  // namespace aliquot::test
