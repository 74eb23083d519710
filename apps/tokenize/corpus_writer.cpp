#include "apps/tokenize/corpus_writer.h"

#include <fmt/format.h>
#include <span>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// Adds the option to the message of an error.
TokenFileWriter open_output(const char* option, const std::string& path, int bytes_per_token) {
  try {
    return TokenFileWriter(path, bytes_per_token);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{} {}", option, error.what()));
  }
}

int bytes_per_token(int64_t vocabulary_size) { return vocabulary_size <= int64_t{1} << 16 ? 2 : 4; }

}  // namespace

bool is_validation_document(int64_t index, double share) {
  // The finalizer of splitmix64: every bit of the result depends on every bit of the input.
  uint64_t z = (static_cast<uint64_t>(index) + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53 < share;
}

CorpusWriter::CorpusWriter(const DataOptions& options, int64_t vocabulary_size)
    : options_(options), train_(open_output("--out", options.out, bytes_per_token(vocabulary_size))) {
  if (!options.validation.empty())
    validation_.emplace(open_output("--validation", options.validation, bytes_per_token(vocabulary_size)));
}

void CorpusWriter::append(const EncodedChunk& chunk) {
  counts_.text_bytes += chunk.text_bytes;
  counts_.empty_documents += chunk.empty_count;
  size_t begin = 0;
  for (size_t i = 0; i < chunk.document_ends.size(); ++i) {
    const auto end = static_cast<size_t>(chunk.document_ends[i]);
    const auto tokens = std::span(chunk.tokens).subspan(begin, end - begin);
    const bool validates = validation_ && is_validation_document(counts_.documents, options_.validation_share);
    TokenFileWriter& writer = validates ? *validation_ : train_;
    if (chunk.answer_begins.empty()) {
      writer.append(tokens);
    } else {
      const auto prompt_tokens = static_cast<size_t>(chunk.answer_begins[i]) - begin;
      writer.append_with_loss_from(tokens, static_cast<int64_t>(prompt_tokens));
    }
    ++(validates ? counts_.validation_documents : counts_.train_documents);
    ++counts_.documents;
    begin = end;
  }
  counts_.train_tokens = train_.token_count();
  counts_.validation_tokens = validation_ ? validation_->token_count() : 0;
  counts_.train_loss_tokens = train_.loss_token_count();
  counts_.validation_loss_tokens = validation_ ? validation_->loss_token_count() : 0;
}

void CorpusWriter::finish(const Tokenizer& tokenizer, std::optional<int32_t> separator) {
  if (counts_.documents == 0) throw UsageError("the files have no text: expected at least one document.");
  const auto refuse_share = [this](const char* file) {
    throw UsageError(fmt::format("--validation-share {} leaves no document for {}: the files have {} document{}.",
                                 options_.validation_share, file, counts_.documents,
                                 counts_.documents == 1 ? "" : "s"));
  };
  if (counts_.train_documents == 0) refuse_share("--out");
  if (validation_ && counts_.validation_documents == 0) refuse_share("--validation");
  TokenFileFacts facts{.vocabulary_size = tokenizer.vocabulary_size(),
                       .end_of_text = separator.value_or(-1),
                       .document_count = counts_.train_documents,
                       .tokenizer_sha256 = tokenizer.sha256(),
                       .tokenizer_json = tokenizer.json()};
  train_.finish(facts);
  if (!validation_) return;
  facts.document_count = counts_.validation_documents;
  validation_->finish(facts);
}

}  // namespace aliquot
