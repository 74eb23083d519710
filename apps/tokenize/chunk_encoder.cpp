#include "apps/tokenize/chunk_encoder.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/models/hugging_face/values.h"
#include "apps/text/unicode/utf8.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  throw UsageError(fmt::format("{}: {}.", where, why));
}

/// Returns the string in `field` of the JSON object in `line`.
std::string text_of_json(std::string_view line, const std::string& field, const std::string& where) {
  Json json;
  try {
    // The parser stops at a NUL and would accept anything after it.
    if (line.find('\0') != std::string_view::npos) refuse(where, "the line is not JSON: it has a NUL byte");
    json = Json::parse(line.begin(), line.end());
  } catch (const Json::exception& error) {
    refuse(where, fmt::format("the line is not JSON: {}", shortened(error.what())));
  }
  if (!json.is_object()) refuse(where, "the line is not a JSON object");
  const auto found = json.find(field);
  if (found == json.end())
    refuse(where, fmt::format("the field '{}' is missing: name the field with --text-field", shortened(field)));
  if (!found->is_string()) {
    const std::string value = shortened(found->dump(-1, ' ', false, Json::error_handler_t::replace));
    refuse(where, fmt::format("the field '{}' is {}: expected a string", shortened(field), value));
  }
  return std::move(found->get_ref<std::string&>());
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

}  // namespace

EncodedChunk ChunkEncoder::encode(const TextChunk& chunk) {
  EncodedChunk encoded;
  if (chunk.format == TextChunk::Format::kDocument) {
    add_document(chunk.text, chunk.file, encoded);
    return encoded;
  }
  int64_t number = chunk.first_line;
  for (size_t begin = 0; begin < chunk.text.size(); ++number) {
    const size_t end = std::min(chunk.text.find('\n', begin), chunk.text.size());
    add_line(chunk, std::string_view(chunk.text).substr(begin, end - begin), number, encoded);
    begin = end + 1;
  }
  return encoded;
}

void ChunkEncoder::add_line(const TextChunk& chunk, std::string_view line, int64_t number, EncodedChunk& to) {
  const std::string where = fmt::format("{}:{}", chunk.file, number);
  if (chunk.format == TextChunk::Format::kLines) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    return add_document(line, where, to);
  }
  if (is_blank(line)) return;
  add_document(text_of_json(line, options_.text_field, where), where, to);
}

void ChunkEncoder::add_document(std::string_view text, const std::string& where, EncodedChunk& to) {
  if (const auto invalid = find_invalid_utf8(text))
    refuse(where,
           fmt::format("byte {} is not UTF-8: expected text in UTF-8, which may be compressed with gzip", *invalid));
  to.text_bytes += static_cast<int64_t>(text.size());
  const size_t before = to.tokens.size();
  if (options_.start) to.tokens.push_back(*options_.start);
  const size_t begin = to.tokens.size();
  try {
    encoder_.encode(text, to.tokens);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", where, error.what()));
  }
  if (to.tokens.size() == begin) {
    to.tokens.resize(before);
    ++to.empty_count;
    return;
  }
  if (options_.separator) to.tokens.push_back(*options_.separator);
  to.document_ends.push_back(static_cast<int64_t>(to.tokens.size()));
}

}  // namespace aliquot
