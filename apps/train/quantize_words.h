#pragma once
// The words of --quantize.

#include <string_view>

namespace aliquot {

/// What crosses between nodes in eight bits.
struct Quantized {
  bool weights = false, gradients = false;
};

/// `word`: none, weights, gradients or both.
constexpr Quantized quantized(std::string_view word) {
  return {.weights = word == "weights" || word == "both", .gradients = word == "gradients" || word == "both"};
}

}  // namespace aliquot
