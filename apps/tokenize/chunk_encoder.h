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
  int64_t text_bytes = 0;
  int64_t empty_count = 0;  // documents without text, which get no tokens
};

struct EncodeOptions {
  std::string text_field = "text";                    // the key of JSON lines that has the text
  std::optional<int32_t> start = {}, separator = {};  // tokens before and after each document
};

/// Used by one thread.
class ChunkEncoder {
 public:
  /// Both arguments must outlive this object.
  ChunkEncoder(const Tokenizer& tokenizer, const EncodeOptions& options) : encoder_(tokenizer), options_(options) {}

  /// Throws UsageError, with the file and the line, if text is not valid UTF-8, if a line is not a JSON object with the
  /// field, or if the tokenizer cannot encode a text.
  EncodedChunk encode(const TextChunk& chunk);

 private:
  void add_line(const TextChunk& chunk, std::string_view line, int64_t number, EncodedChunk& to);
  void add_document(std::string_view text, const std::string& where, EncodedChunk& to);

  Tokenizer::Encoder encoder_;
  const EncodeOptions& options_;
};

}  // namespace aliquot
