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

Json parse_object(std::string_view line, const std::string& where) {
  Json json;
  try {
    // The parser stops at a NUL and would accept anything after it.
    if (line.find('\0') != std::string_view::npos) refuse(where, "the line is not JSON: it has a NUL byte");
    json = Json::parse(line.begin(), line.end());
  } catch (const Json::exception& error) {
    std::string why = json_error_text(error.what());
    if (const size_t at = why.find("line 1, "); at != std::string::npos) why.erase(at, 8);  // `where` has the line
    refuse(where, fmt::format("the line is not JSON: {}", why));
  }
  if (!json.is_object()) refuse(where, "the line is not a JSON object");
  return json;
}

/// Returns the string in a field of a JSON object. `option` names the field.
std::string_view text_of(const Json& json, const std::string& field, const char* option, const std::string& where) {
  const auto found = json.find(field);
  if (found == json.end())
    refuse(where, fmt::format("the field '{}' is missing: name the field with {}", shortened(field), option));
  if (!found->is_string()) {
    const std::string value = shortened(found->dump(-1, ' ', false, Json::error_handler_t::replace));
    refuse(where, fmt::format("the field '{}' is {}: expected a string", shortened(field), value));
  }
  return found->get_ref<const std::string&>();
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

}  // namespace

EncodedChunk ChunkEncoder::encode(const TextChunk& chunk) {
  if (!options_.answer_field.empty() && chunk.format != TextChunk::Format::kJsonLines)
    refuse(chunk.file, "prompts and answers must be JSON lines: expected a name that ends in .jsonl, .ndjson or .json");
  EncodedChunk encoded;
  if (chunk.format == TextChunk::Format::kDocument) {
    add_document(chunk.text, std::nullopt, chunk.file, encoded);
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
    return add_document(line, std::nullopt, where, to);
  }
  if (is_blank(line)) return;
  const Json json = parse_object(line, where);
  if (options_.answer_field.empty())
    return add_document(text_of(json, options_.text_field, "--text-field", where), std::nullopt, where, to);
  add_document(text_of(json, options_.prompt_field, "--prompt-field", where),
               text_of(json, options_.answer_field, "--answer-field", where), where, to);
}

void ChunkEncoder::add_document(std::string_view text, std::optional<std::string_view> answer, const std::string& where,
                                EncodedChunk& to) {
  const size_t before = to.tokens.size();
  if (options_.start) to.tokens.push_back(*options_.start);
  bool has_tokens = append_tokens(text, where, to);
  const size_t answer_begin = to.tokens.size();
  if (answer) has_tokens = append_tokens(*answer, where, to);
  if (!has_tokens) {
    to.tokens.resize(before);
    ++to.empty_count;
    return;
  }
  if (options_.separator) to.tokens.push_back(*options_.separator);
  if (answer) to.answer_begins.push_back(static_cast<int64_t>(answer_begin));
  to.document_ends.push_back(static_cast<int64_t>(to.tokens.size()));
}

bool ChunkEncoder::append_tokens(std::string_view text, const std::string& where, EncodedChunk& to) {
  if (const auto invalid = find_invalid_utf8(text))
    refuse(where,
           fmt::format("byte {} is not UTF-8: expected text in UTF-8, which may be compressed with gzip", *invalid));
  to.text_bytes += static_cast<int64_t>(text.size());
  const size_t before = to.tokens.size();
  try {
    encoder_.encode(text, to.tokens);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", where, error.what()));
  }
  return to.tokens.size() > before;
}

}  // namespace aliquot
