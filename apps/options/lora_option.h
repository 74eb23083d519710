#pragma once
// The option --lora.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apps/models/lora.h"

namespace aliquot {

/// The value of --lora, for a model that is not known yet.
struct LoraOption {
  int64_t rank = 0;  // 0: --lora is not given
  double alpha = 16;
  std::vector<std::string> targets = {"all-linear"};

  friend bool operator==(const LoraOption&, const LoraOption&) = default;
};

/// Parses for example "rank=8,alpha=16,targets=q_proj,v_proj". A word without "=" continues the value before it.
/// Missing fields have the defaults rank 8, alpha 16 and all linear layers of blocks. Throws UsageError.
LoraOption parse_lora(std::string_view text);
/// The text that parse_lora() parses as this value; "" if --lora is not given.
std::string lora_text(const LoraOption& option);

/// Returns the adapters of a model. A target is "all-linear", a word such as q, or the end of a path in a block, such
/// as q_proj or self_attn.q_proj. Throws UsageError if no linear layer of the family has such a name.
Lora lora_of(const LoraOption& option, ModelFamily family);

/// Returns targets from which lora_of() makes `lora`: "all-linear", or the name of each adapted layer.
std::vector<std::string> target_words(const Lora& lora, ModelFamily family);

}  // namespace aliquot
