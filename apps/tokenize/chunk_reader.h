#pragma once
// Reads the text of a list of files in parts that threads can encode independently.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/tokenize/text_file.h"

namespace aliquot {

enum class DocumentUnit : uint8_t { kFile, kLine };

/// Complete documents of one file.
struct TextChunk {
  enum class Format : uint8_t {
    kDocument,   // one document
    kLines,      // a document in each line
    kJsonLines,  // a JSON object in each line
  };
  std::string text = {};
  std::string file;
  int64_t first_line = 1;
  Format format = Format::kDocument;
};

/// The largest document, in bytes.
inline constexpr size_t kDocumentBytesLimit = size_t{1} << 30;

/// Reads files in order. Files whose names end in .jsonl, .ndjson or .json, possibly followed by .gz, are JSON lines.
/// `unit`: whether a file of another kind is one document, or each of its lines is one.
class ChunkReader {
 public:
  ChunkReader(std::vector<std::filesystem::path> files, DocumentUnit unit);

  /// Returns the next part, or nullopt after the last one. Throws UsageError if a file cannot be read, or if a document
  /// is larger than kDocumentBytesLimit.
  std::optional<TextChunk> next();
  /// The part of all bytes that is read, from 0 to 1.
  double share() const;

 private:
  bool open_next();
  TextChunk read_file();
  std::optional<TextChunk> read_lines();
  [[noreturn]] void refuse_large() const;
  std::filesystem::path path() const { return files_[opened_ - 1]; }

  std::vector<std::filesystem::path> files_;
  DocumentUnit unit_;
  size_t opened_ = 0;
  std::unique_ptr<TextFile> file_;
  TextChunk::Format format_ = TextChunk::Format::kDocument;
  std::string rest_;  // bytes that are read, but not yet returned
  int64_t line_ = 1;  // number of the first line of rest_
  int64_t total_bytes_ = 0, finished_bytes_ = 0;
};

}  // namespace aliquot
