#pragma once
// One number for all the weights of a run.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/hash/sha256.h"
#include "kernels/formats/dtype.h"

namespace aliquot {

/// SHA-256 over one line a parameter, sorted by name: `NAME float32 50257x768 HEX\n`, HEX being SHA-256 of the whole
/// tensor's bytes, little-endian. A scalar's shape is "1".
class WeightDigest {
 public:
  /// Tensors in any order, each once and whole. `hash` is of its bytes.
  void add(const std::string& name, DType dtype, const std::vector<int64_t>& shape, const Sha256::Digest& hash);
  /// 64 hex digits.
  std::string finish() const;

 private:
  std::map<std::string, std::string> lines_;  // by name
};

}  // namespace aliquot
