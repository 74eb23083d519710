#pragma once
// Encodes the documents of a chunk.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/text/tokenizer.h"
#include "apps/tokenize/chunk_reader.h"

namespace aliquot {

struct EncodedChunk {
  std::vector<int32_t> tokens;         // of all documents, with the tokens around them
  std::vector<int64_t> document_ends;  // index after the last token of each document
  // With EncodeOptions::answer_field, the index of the first token of each answer. Its last token, and the separator,
  // end the document.
  std::vector<int64_t> answer_begins;
  int64_t text_bytes = 0;
  int64_t empty_count = 0;  // documents without text or without an answer, which get no tokens
};

struct EncodeOptions {
  std::string text_field = "text";  // the key of JSON lines that has the text
  // If they are not empty, the keys of JSON lines that have a prompt and its answer, instead of text_field.
  std::string prompt_field = {}, answer_field = {};
  std::optional<int32_t> start = {}, separator = {};  // tokens before and after each document
};

/// Used by one thread.
class ChunkEncoder {
 public:
  /// Both arguments must outlive this object.
  ChunkEncoder(const Tokenizer& tokenizer, const EncodeOptions& options) : encoder_(tokenizer), options_(options) {}

  /// Throws UsageError, with the file and the line, if text is not valid UTF-8, if a line is not a JSON object with the
  /// fields, if documents need an answer but are not JSON lines, or if the tokenizer cannot encode a text.
  EncodedChunk encode(const TextChunk& chunk);

 private:
  void add_line(const TextChunk& chunk, std::string_view line, int64_t number, EncodedChunk& to);
  /// Appends a document. An answer is encoded separately from the text before it.
  void add_document(std::string_view text, std::optional<std::string_view> answer, const std::string& where,
                    EncodedChunk& to);
  /// Appends the tokens of `text` to to.tokens. Returns whether there are any.
  bool append_tokens(std::string_view text, const std::string& where, EncodedChunk& to);

  Tokenizer::Encoder encoder_;
  const EncodeOptions& options_;
};

}  // namespace aliquot
