#include "apps/tokenize/data_options.h"

#include "apps/options/arguments.h"
#include "kernels/system/error.h"
#include "sharding/cores.h"

namespace aliquot {
namespace {

constexpr EnumName<DocumentUnit> kDocumentUnits[] = {{"file", DocumentUnit::kFile}, {"line", DocumentUnit::kLine}};

void check(const DataOptions& o) {
  if (o.files.empty()) throw UsageError("no text was given: name the files, as in aliquot data FILE... --out FILE.h5.");
  if (o.tokenizer.empty() && o.learn_tokenizer == 0)
    throw UsageError("--tokenizer is missing: name a tokenizer.json, or learn one with --learn-tokenizer N.");
  if (!o.tokenizer.empty() && o.learn_tokenizer > 0)
    throw UsageError("--tokenizer and --learn-tokenizer cannot be combined: leave one out.");
  if (o.out.empty()) throw UsageError("--out is missing: name the file of tokens, which ends in .h5.");
  for (const auto& [flag, name] : {std::pair("--out", &o.out), std::pair("--validation", &o.validation)}) {
    const auto suffix = std::filesystem::path(*name).extension();
    if (!name->empty() && suffix != ".h5" && suffix != ".hdf5")
      throw UsageError(std::string("invalid value '") + *name + "' for " + flag +
                       ": expected a name that ends in .h5.");
  }
  if (o.prompt_field.empty() != o.answer_field.empty())
    throw UsageError("--prompt-field and --answer-field belong together: name both fields.");
  if (!o.prompt_field.empty() && o.prompt_field == o.answer_field)
    throw UsageError("--prompt-field and --answer-field name the same field: name two fields.");
  if (!o.answer_field.empty() && o.text_field != DataOptions().text_field)
    throw UsageError("--text-field has no effect with --prompt-field and --answer-field: leave it out.");
  if (o.validation.empty() && o.validation_share != DataOptions().validation_share)
    throw UsageError(
        "--validation-share has no effect without --validation: give --validation FILE, or leave --validation-share "
        "out.");
  if (o.out == o.validation) throw UsageError("--out and --validation name the same file: name two files.");
}

}  // namespace

OptionTable data_option_table(DataOptions& o) {
  OptionTable t;
  t.heading("Text");
  t.text("text-field", "NAME", o.text_field, "Key of the text in files of JSON lines (.jsonl, .ndjson, .json).");
  t.text("prompt-field", "NAME", o.prompt_field,
         "Key of the prompt in files of JSON lines, instead of --text-field. Training ignores the loss of its tokens.");
  t.text("answer-field", "NAME", o.answer_field,
         "Key of the answer that follows the prompt. Training uses the loss of its tokens and of the separator.");
  t.choice("documents", o.documents, kDocumentUnits,
           "What a document of the other files is: the whole file, or a line.");
  t.heading("Tokens");
  t.text("tokenizer", "FILE", o.tokenizer, "The tokenizer.json of the model.");
  t.count("learn-tokenizer", o.learn_tokenizer, {257, int64_t{1} << 20},
          "Instead of --tokenizer: learn a byte-level BPE tokenizer of N tokens from the text.");
  t.text("separator", "TOKEN", o.separator,
         "Token after each document; auto: <|endoftext|>, <|end_of_text|>, </s> or <eos>, the first that the tokenizer "
         "has; none: no token.");
  t.text("document-start", "TOKEN", o.document_start, "Token before each document; none: no token.");
  t.heading("Output");
  t.text("out", "FILE", o.out, "File of tokens for --data of aliquot train; ends in .h5.");
  t.text("validation", "FILE", o.validation, "File of tokens for --eval-data; gets a part of the documents.");
  t.real("validation-share", o.validation_share, {1e-9, 1},
         "Probability that a document is written to --validation. It depends only on the number of the document.");
  t.count("threads", o.threads, {1, 1024},
          "Threads that encode; default: as many as the cores on which the command may run.");
  t.toggle("quiet", o.quiet, "Do not print progress.");
  add_config(t, o.config);
  return t;
}

int encoder_thread_count(const DataOptions& options) { return options.threads.value_or(allowed_core_count()); }

DataOptions parse_data_arguments(const std::vector<std::string>& arguments) {
  DataOptions options;
  const OptionTable table = data_option_table(options);
  std::vector<std::string> flags = arguments;
  for (const std::string& file : extract_positional(flags, table)) options.files.emplace_back(file);
  parse_arguments(table, flags);
  check(options);
  return options;
}

}  // namespace aliquot
