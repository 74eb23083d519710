#pragma once
// The weights that a checkpoint of adapters belongs to.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sharding/comm/communicator.h"

namespace aliquot {

/// Reads safetensors weights or a checkpoint as fp32. Not thread-safe.
class BaseWeights {
 public:
  struct Tensor {
    std::string name;  // as in checkpoints, without "parameters/"
    std::vector<int64_t> shape;
    int64_t count = 0;
    /// Reads the elements from `first` on. At most kChunkElements at a time.
    std::function<void(int64_t first, std::span<float> to)> read;
  };
  static constexpr int64_t kChunkElements = 512 << 10;

  /// `path` is a folder or a file of weights, a checkpoint, or a directory of checkpoints. `untied` is whether the
  /// model has a head that is not the token embedding. Throws UsageError or CheckpointError if a file is absent or
  /// malformed.
  BaseWeights(const std::string& path, bool untied);
  ~BaseWeights();

  /// Sorted by name.
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  struct Files;
  std::unique_ptr<Files> files_;
  std::vector<Tensor> tensors_;
};

/// Returns the digest of weights as `aliquot checkpoint show` computes it for the same values in fp32. So it does not
/// depend on the format and the element type of the files. Reads all bytes; each rank reads a part. Collective. Throws
/// the same error on all ranks.
std::string digest_of_base(Communicator& communicator, const std::string& path, bool untied);
std::string digest_of_base(const BaseWeights& weights);

}  // namespace aliquot
