#pragma once
// The options of `aliquot data`.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/tokenize/chunk_reader.h"
#include "engine/options/option_table.h"

namespace aliquot {

struct DataOptions {
  std::vector<std::filesystem::path> files;
  std::string tokenizer, out;
  int64_t learn_tokenizer = 0;  // size of the vocabulary; 0: the tokenizer is given
  std::string text_field = "text", prompt_field, answer_field;
  DocumentUnit documents = DocumentUnit::kFile;
  std::string separator = "auto";
  std::string document_start = "none";
  std::string validation;
  double validation_share = 0.01;
  std::optional<int> threads;
  bool quiet = false;
  std::string config;  // the parser reads this file
};

/// `options` must outlive the table.
OptionTable data_option_table(DataOptions& options);

/// The number of threads that encode: --threads, or the number of cores on which this thread may run.
int encoder_thread_count(const DataOptions& options);

/// Parses the arguments of `aliquot data`. Throws UsageError, for example if a required option is missing.
DataOptions parse_data_arguments(const std::vector<std::string>& arguments);

}  // namespace aliquot
