#pragma once
// The checksum of all parameters of a run.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/hash/sha256.h"
#include "kernels/formats/dtype.h"

namespace aliquot {

/// SHA-256 over one line for each parameter, sorted by name: `NAME float32 50257x768 HEX\n`. HEX is the SHA-256 of the
/// bytes of the full tensor, little-endian. The shape of a scalar is "1".
class WeightDigest {
 public:
  /// Adds a full tensor; `hash` is the SHA-256 of its bytes. Call once for each tensor, in any order.
  void add(const std::string& name, DType dtype, const std::vector<int64_t>& shape, const Sha256::Digest& hash);
  /// The lines of all tensors added so far, which another digest can add with add_lines().
  std::string lines() const;
  void add_lines(const std::string& lines);
  /// Returns 64 hexadecimal digits.
  std::string finish() const;

 private:
  std::map<std::string, std::string> lines_;  // the line of each parameter, keyed by the parameter's name
};

}  // namespace aliquot
