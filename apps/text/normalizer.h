#pragma once
// The normalizer of a tokenizer.json.

#include <functional>
#include <string>
#include <vector>

#include "apps/text/json_field.h"

namespace aliquot {

/// Changes text before it is split. Supports null, Sequence, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, Replace
/// and Strip.
class Normalizer {
 public:
  /// Throws UsageError for a normalizer that is not supported.
  explicit Normalizer(const JsonField& field) { add(field); }

  /// Changes valid UTF-8 text in place. Safe to call from several threads.
  void apply(std::string& text) const {
    for (const Step& step : steps_) step(text);
  }
  /// Whether apply() changes nothing.
  bool is_identity() const { return steps_.empty(); }

 private:
  using Step = std::function<void(std::string&)>;

  void add(const JsonField& field);

  std::vector<Step> steps_;
};

}  // namespace aliquot
