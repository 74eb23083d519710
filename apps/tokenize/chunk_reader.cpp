#include "apps/tokenize/chunk_reader.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <utility>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

namespace fs = std::filesystem;

constexpr size_t kChunkBytes = size_t{1} << 20;

bool has_json_lines(fs::path file) {
  constexpr std::array<std::string_view, 3> kSuffixes{".jsonl", ".ndjson", ".json"};
  if (file.extension() == ".gz") file.replace_extension();
  return std::ranges::find(kSuffixes, file.extension().string()) != kSuffixes.end();
}

int64_t file_bytes(const fs::path& file) {
  std::error_code error;  // reported when the file is opened
  const auto bytes = fs::file_size(file, error);
  return error ? 0 : static_cast<int64_t>(bytes);
}

}  // namespace

ChunkReader::ChunkReader(std::vector<fs::path> files, DocumentUnit unit) : files_(std::move(files)), unit_(unit) {
  for (const fs::path& file : files_) total_bytes_ += file_bytes(file);
}

void ChunkReader::refuse_large() const {
  throw UsageError(fmt::format("{}: a document is larger than 1 GiB: split it.", path().string()));
}

bool ChunkReader::open_next() {
  if (opened_ > 0) finished_bytes_ += file_bytes(path());
  file_.reset();
  if (opened_ == files_.size()) return false;
  file_ = std::make_unique<TextFile>(files_[opened_++]);
  format_ = has_json_lines(path())         ? TextChunk::Format::kJsonLines
            : unit_ == DocumentUnit::kLine ? TextChunk::Format::kLines
                                           : TextChunk::Format::kDocument;
  rest_.clear();
  line_ = 1;
  return true;
}

std::optional<TextChunk> ChunkReader::next() {
  while (file_ || open_next()) {
    if (format_ == TextChunk::Format::kDocument) {
      TextChunk chunk = read_file();
      open_next();
      return chunk;
    }
    if (auto chunk = read_lines()) return chunk;
    if (!open_next()) break;
  }
  return std::nullopt;
}

TextChunk ChunkReader::read_file() {
  TextChunk chunk{.file = path().string(), .format = format_};
  while (file_->read(chunk.text, kChunkBytes)) {
    if (chunk.text.size() > kDocumentBytesLimit) refuse_large();
  }
  return chunk;
}

std::optional<TextChunk> ChunkReader::read_lines() {
  bool has_more = true;
  size_t end = std::string::npos;
  while (has_more && (rest_.size() < kChunkBytes || end == std::string::npos)) {
    const size_t before = rest_.size();
    has_more = file_->read(rest_, kChunkBytes);
    const size_t newline = std::string_view(rest_).substr(before).rfind('\n');
    if (newline != std::string_view::npos) end = before + newline + 1;
    if (end == std::string::npos && rest_.size() > kDocumentBytesLimit) refuse_large();
  }
  if (!has_more) end = rest_.size();
  if (end == 0) return std::nullopt;
  TextChunk chunk{.text = rest_.substr(0, end), .file = path().string(), .first_line = line_, .format = format_};
  rest_.erase(0, end);
  line_ += std::ranges::count(chunk.text, '\n');
  return chunk;
}

double ChunkReader::share() const {
  const int64_t done = finished_bytes_ + (file_ ? file_->position_bytes() : 0);
  return total_bytes_ > 0 ? std::min(1.0, static_cast<double>(done) / static_cast<double>(total_bytes_)) : 0;
}

}  // namespace aliquot
