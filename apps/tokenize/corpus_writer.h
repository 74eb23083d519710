#pragma once
// Writes encoded documents to the files of training and validation tokens.

#include <cstdint>
#include <optional>

#include "apps/data/token_file_writer.h"
#include "apps/text/tokenizer.h"
#include "apps/tokenize/chunk_encoder.h"
#include "apps/tokenize/data_options.h"

namespace aliquot {

/// Whether document `index` of a corpus is for validation. Depends only on the arguments, so the number of threads and
/// the division into files do not change it.
bool is_validation_document(int64_t index, double share);

/// The numbers of the documents, tokens and bytes that were written.
struct CorpusCounts {
  int64_t documents = 0, empty_documents = 0, text_bytes = 0;
  int64_t train_documents = 0, train_tokens = 0, validation_documents = 0, validation_tokens = 0;
  int64_t train_loss_tokens = 0, validation_loss_tokens = 0;  // tokens whose loss counts
};

class CorpusWriter {
 public:
  /// Throws UsageError if an output file exists or cannot be created.
  CorpusWriter(const DataOptions& options, int64_t vocabulary_size);

  /// Appends the next documents of the corpus.
  void append(const EncodedChunk& chunk);
  const CorpusCounts& counts() const { return counts_; }
  /// Writes the files. Throws UsageError if a file would have no tokens, and FaultError if a write fails.
  void finish(const Tokenizer& tokenizer, std::optional<int32_t> separator);

 private:
  const DataOptions& options_;
  TokenFileWriter train_;
  std::optional<TokenFileWriter> validation_;
  CorpusCounts counts_;
};

}  // namespace aliquot
