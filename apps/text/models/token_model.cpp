#include "apps/text/models/token_model.h"

namespace aliquot {

std::unique_ptr<TokenModel> read_token_model(const JsonField& field, bool is_byte_level) {
  const JsonField type = field["type"], vocabulary = field["vocab"];
  // Files of earlier versions, for example GPT-2's, do not name the type.
  const bool is_bpe =
      type.is_null() ? vocabulary.json().is_object() && field.json().contains("merges") : type.text() == "BPE";
  if (is_bpe) return read_bpe_model(field, is_byte_level);
  const bool is_unigram = type.is_null() ? vocabulary.json().is_array() : type.text() == "Unigram";
  if (is_unigram) return read_unigram_model(field, is_byte_level);
  type.refuse("not supported (only BPE and Unigram)");
}

}  // namespace aliquot
