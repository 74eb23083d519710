#include "apps/text/tokenizer_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <system_error>

#include "apps/data/whole_file.h"
#include "apps/text/json_field.h"
#include "apps/text/models/token_model.h"
#include "checkpoint/checkpoint_directory.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// Appends the special tokens before the text in a post-processor, which may be a sequence of post-processors.
void add_tokens_before(const JsonField& post, const Tokenizer& tokenizer, std::vector<int32_t>& tokens) {
  if (post.is_null()) return;
  const std::string& type = post["type"].text();
  if (type == "Sequence") {
    post["processors"].for_each([&](const JsonField& part) { add_tokens_before(part, tokenizer, tokens); });
    return;
  }
  if (type != "TemplateProcessing") return;
  bool is_before = true;
  post["single"].for_each([&](const JsonField& part) {
    const JsonField special = part["SpecialToken"];
    is_before = is_before && !special.is_null();
    if (!is_before) return;
    const auto token = tokenizer.find(special["id"].text());
    if (!token) special["id"].refuse("the tokenizer has no such token");
    tokens.push_back(*token);
  });
}

/// Returns eos_token_id of a JSON file: a number or a list of numbers. Returns an empty list if there is no file or no
/// such key.
std::vector<int32_t> end_tokens_in(const std::filesystem::path& path) {
  constexpr int64_t kLargestFileMib = 16;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return {};
  const std::string file = path.string();
  const nlohmann::json json = parse_tokenizer_json(read_whole_file(path, kLargestFileMib), file);
  const JsonField end = JsonField(json, "", file)["eos_token_id"];
  if (end.is_null()) return {};
  if (!end.json().is_array()) return {static_cast<int32_t>(end.index(kLargestToken))};
  std::vector<int32_t> tokens;
  end.for_each([&](const JsonField& one) { tokens.push_back(static_cast<int32_t>(one.index(kLargestToken))); });
  return tokens;
}

}  // namespace

std::optional<std::filesystem::path> find_tokenizer(const std::filesystem::path& weights) {
  std::error_code ignored;
  const std::filesystem::path absolute = std::filesystem::absolute(weights, ignored).lexically_normal();
  // The name of a directory may end in a slash.
  const std::filesystem::path own = absolute.has_filename() ? absolute : absolute.parent_path();
  const auto in = [&](const std::filesystem::path& folder) -> std::optional<std::filesystem::path> {
    if (!std::filesystem::is_regular_file(folder / kTokenizerFile, ignored)) return std::nullopt;
    return folder / kTokenizerFile;
  };
  if (auto found = in(own)) return found;
  const bool is_in_folder = !std::filesystem::is_directory(own, ignored) || checkpoint_step(own.filename().string());
  return is_in_folder ? in(own.parent_path()) : std::nullopt;
}

std::vector<int32_t> tokens_before_text(const Tokenizer& tokenizer) {
  const nlohmann::json json = parse_tokenizer_json(tokenizer.json(), tokenizer.file());
  std::vector<int32_t> tokens;
  add_tokens_before(JsonField(json, "", tokenizer.file())["post_processor"], tokenizer, tokens);
  return tokens;
}

std::vector<int32_t> end_tokens(const std::filesystem::path& weights, const Tokenizer& tokenizer) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (std::vector<int32_t> tokens = end_tokens_in(weights / name); !tokens.empty()) return tokens;
  }
  const auto name = end_of_text_token(tokenizer);
  return name ? std::vector{*tokenizer.find(*name)} : std::vector<int32_t>{};
}

}  // namespace aliquot
