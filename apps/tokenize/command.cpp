// aliquot data: encodes text as tokens for aliquot train.
#include <algorithm>
#include <fmt/format.h>
#include <new>
#include <unistd.h>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/options/arguments.h"
#include "apps/text/byte_tokenizer.h"
#include "apps/tokenize/bpe_learner.h"
#include "apps/tokenize/chunk_encoder.h"
#include "apps/tokenize/corpus_writer.h"
#include "apps/tokenize/data_options.h"
#include "apps/tokenize/ordered_workers.h"
#include "kernels/system/error.h"
#include "kernels/system/format_bytes.h"
#include "kernels/system/seconds.h"

namespace aliquot {
namespace {

/// Prints the progress on standard error: every second on a terminal, otherwise every 30 seconds.
class EncodingProgress {
 public:
  explicit EncodingProgress(bool quiet) : quiet_(quiet), on_terminal_(isatty(STDERR_FILENO) != 0) {}
  ~EncodingProgress() {
    if (line_is_open_) write_stream(stderr, "\r\x1b[K");
  }
  EncodingProgress(const EncodingProgress&) = delete;
  EncodingProgress& operator=(const EncodingProgress&) = delete;

  void show(const CorpusCounts& counts, double share) {
    const double now = now_seconds(), interval = on_terminal_ ? 1 : 30;
    if (quiet_ || now - shown_ < interval) return;
    shown_ = now;
    const std::string text = fmt::format("{:.0f} %  {} documents, {} tokens, {:.1f} MB/s", 100 * share,
                                         counts.documents, counts.train_tokens + counts.validation_tokens,
                                         static_cast<double>(counts.text_bytes) * 1e-6 / (now - began_));
    line_is_open_ = on_terminal_;
    write_stream(stderr, on_terminal_ ? "\r" + text + "\x1b[K" : text + "\n");
  }

 private:
  const bool quiet_, on_terminal_;
  const double began_ = now_seconds();
  double shown_ = began_;
  bool line_is_open_ = false;
};

std::optional<int32_t> special_token(const Tokenizer& tokenizer, const char* option, const std::string& name) {
  if (name == "none") return std::nullopt;
  const auto token = tokenizer.find(name);
  if (!token) throw UsageError(fmt::format("{} {}: the tokenizer has no such token.", option, name));
  return token;
}

std::string separator_name(const Tokenizer& tokenizer, const std::string& given) {
  if (given != "auto") return given;
  if (const auto found = end_of_text_token(tokenizer)) return *found;
  throw UsageError(
      "the tokenizer has no token with a usual name for the end of a document: name one with --separator, or use "
      "--separator none.");
}

/// Reads and encodes all files. Calls take(chunk, share) for each chunk in order; `share` is the part of all bytes that
/// is read. The calling thread reads and writes.
template <typename Take>
void encode_files(const DataOptions& options, const Tokenizer& tokenizer, const EncodeOptions& encode, Take&& take) {
  const int threads = encoder_thread_count(options);
  ChunkReader reader(options.files, options.documents);
  OrderedWorkers<TextChunk, EncodedChunk> workers(threads, [&] {
    auto encoder = std::make_shared<ChunkEncoder>(tokenizer, encode);
    return [encoder](const TextChunk& chunk) { return encoder->encode(chunk); };
  });
  const auto most_pending = static_cast<size_t>(2 * threads);
  bool has_more = true;
  while (has_more || workers.pending_count() > 0) {
    while (has_more && workers.pending_count() < most_pending) {
      auto chunk = reader.next();
      has_more = chunk.has_value();
      if (chunk) workers.push(std::move(*chunk));
    }
    if (workers.pending_count() == 0) break;
    take(workers.pop(), reader.share());
  }
}

/// Learns a tokenizer from the documents of all files. Encodes them as bytes to get their text.
std::unique_ptr<Tokenizer> learn_tokenizer(const DataOptions& options, const EncodeOptions& encode) {
  const Tokenizer bytes(byte_tokenizer_json(), "bytes");
  BpeLearner learner;
  encode_files(options, bytes, encode, [&](const EncodedChunk& chunk, double) {
    size_t begin = 0;
    for (const int64_t end : chunk.document_ends) {
      std::string text;
      for (size_t i = begin; i < static_cast<size_t>(end); ++i) text += static_cast<char>(chunk.tokens[i]);
      learner.add(text);
      begin = static_cast<size_t>(end);
    }
  });
  return std::make_unique<Tokenizer>(tokenizer_json(learner.learn(options.learn_tokenizer)), "the learned tokenizer");
}

std::string document_count(int64_t count) { return fmt::format("{} document{}", count, count == 1 ? "" : "s"); }

/// "train.h5: 10 documents, 500 tokens", and with answers ", 200 of them in answers and separators".
void print_file(const DataOptions& options, const std::string& file, int64_t documents, int64_t tokens,
                int64_t loss_tokens) {
  const std::string answers =
      options.answer_field.empty() ? "" : fmt::format(", {} of them in answers and separators", loss_tokens);
  write_stdout("{}: {}, {} tokens{}\n", file, document_count(documents), tokens, answers);
}

void print_result(const DataOptions& options, const Tokenizer& tokenizer, const CorpusCounts& counts, double seconds) {
  print_file(options, options.out, counts.train_documents, counts.train_tokens, counts.train_loss_tokens);
  if (!options.validation.empty())
    print_file(options, options.validation, counts.validation_documents, counts.validation_tokens,
               counts.validation_loss_tokens);
  if (counts.empty_documents > 0)
    write_stdout("left out {} without {}\n", document_count(counts.empty_documents),
                 options.answer_field.empty() ? "text" : "an answer");
  write_stdout("vocabulary of {} tokens; {} of text in {:.1f} s ({:.1f} MB/s)\n", tokenizer.vocabulary_size(),
               format_bytes(counts.text_bytes), seconds, static_cast<double>(counts.text_bytes) * 1e-6 / seconds);
}

int encode_corpus(const DataOptions& options) {
  const double began = now_seconds();
  EncodeOptions encode{
      .text_field = options.text_field, .prompt_field = options.prompt_field, .answer_field = options.answer_field};
  // Refuses existing and unwritable files before the work of learning.
  if (options.learn_tokenizer > 0) CorpusWriter(options, options.learn_tokenizer);
  const auto tokenizer =
      options.learn_tokenizer > 0 ? learn_tokenizer(options, encode) : Tokenizer::read(options.tokenizer);
  const std::string separator = separator_name(*tokenizer, options.separator);
  encode.separator = special_token(*tokenizer, "--separator", separator);
  encode.start = special_token(*tokenizer, "--document-start", options.document_start);
  CorpusWriter writer(options, tokenizer->vocabulary_size());
  EncodingProgress progress(options.quiet);
  encode_files(options, *tokenizer, encode, [&](const EncodedChunk& chunk, double share) {
    writer.append(chunk);
    progress.show(writer.counts(), share);
  });
  writer.finish(*tokenizer, encode.separator);
  print_result(options, *tokenizer, writer.counts(), now_seconds() - began);
  return 0;
}

}  // namespace

CommandHelp data_help() {
  DataOptions options;
  return {.name = "data",
          .summary = "encode text as tokens for train --data",
          .usage = "FILE... --tokenizer FILE|--learn-tokenizer N --out FILE.h5 [--option value ...]",
          .text =
              "  aliquot data part-*.jsonl.gz --tokenizer hf/tokenizer.json --out train.h5 --validation valid.h5\n"
              "  aliquot train --init hf --data train.h5 --eval-data valid.h5 --eval-every 100\n"
              "  aliquot data chats.jsonl --prompt-field question --answer-field answer --tokenizer hf/tokenizer.json "
              "--out chats.h5\n\n"
              "Encodes text with the tokenizer.json of a Hugging Face model, and writes the tokens of all documents "
              "one after the other. Files are text or JSON lines, in UTF-8, and may be compressed with gzip. "
              "Supports byte-level BPE (GPT-2, Llama 3, Qwen), BPE with byte fallback (Llama 2) and unigram models. "
              "--learn-tokenizer makes a tokenizer for the text. The file of tokens contains its tokenizer.",
          .options = help_options(data_option_table(options)),
          .subcommands = {},
          .exit_codes = {0, 1, 2, 3}};
}

int run_data(const Arguments& arguments) {
  try {
    return encode_corpus(parse_data_arguments(arguments));
  } catch (const std::bad_alloc&) {
    throw UnavailableError("out of memory: use fewer --threads, or smaller documents.");
  }
}

}  // namespace aliquot
