#pragma once
// LoRA: which linear layers of a block have adapters, and of which rank.

#include <cstdint>
#include <span>
#include <string_view>

namespace aliquot {

enum class ModelFamily : uint8_t { kGpt2, kLlama };

/// The linear layers of a block. GPT-2 has one matrix for queries, keys and values.
enum class Projection : uint8_t { kQuery, kKey, kValue, kPacked, kOutput, kGate, kUp, kDown };
inline constexpr int kProjectionCount = 8;

/// The names of a linear layer.
struct ProjectionNames {
  Projection projection;
  std::string_view word;  // in --lora targets: "q"
  std::string_view path;  // in a block of a checkpoint: "self_attn.q_proj"
};
/// The linear layers of the blocks of a family, in the order of their tensors.
std::span<const ProjectionNames> projections_of(ModelFamily family);

/// The adapters of a model. A linear layer y = W x with an adapter computes y = W x + alpha / rank * B A x. Only the
/// matrices A and B are trained; all other parameters are frozen.
struct Lora {
  int64_t rank = 0;  // 0: the model has no adapters, and all its parameters are trained
  double alpha = 0;
  uint32_t targets = 0;  // one bit for each Projection

  bool exists() const { return rank > 0; }
  bool adapts(Projection p) const { return rank > 0 && (targets >> static_cast<int>(p) & 1) != 0; }
  void add(Projection p) { targets |= uint32_t{1} << static_cast<int>(p); }
  float factor() const { return static_cast<float>(alpha / static_cast<double>(rank)); }
  friend bool operator==(const Lora&, const Lora&) = default;
};

/// The ends of the names of adapter matrices: "h.0.attn.c_attn" + kLoraA. A is [rank, inputs], and B is
/// [outputs, rank].
inline constexpr std::string_view kLoraA = ".lora_A.weight", kLoraB = ".lora_B.weight";

/// Whether a parameter with this name belongs to an adapter.
inline bool is_adapter(std::string_view parameter) {
  return parameter.ends_with(kLoraA) || parameter.ends_with(kLoraB);
}

}  // namespace aliquot
