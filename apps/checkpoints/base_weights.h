#pragma once
// The weights that a checkpoint of adapters belongs to.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/options/lora_option.h"
#include "checkpoint/file/manifest.h"
#include "sharding/comm/communicator.h"
#include "sharding/state.h"

namespace aliquot {

/// What the scalars of a checkpoint record about its adapters. Such a checkpoint contains no other parameters.
struct SavedAdapters {
  LoraOption lora;
  std::string base;         // the path of the base
  std::string base_digest;  // see digest_of_base()
};

std::map<std::string, Scalar> adapter_scalars(const SavedAdapters& adapters);
/// Returns nullopt if the checkpoint with these scalars contains a whole model. Throws UsageError if a scalar has the
/// wrong type or is out of range.
std::optional<SavedAdapters> saved_adapters(const std::map<std::string, Scalar>& scalars);
/// The same for the checkpoint at `path`, or for the newest one in the directory `path`. Returns nullopt if there is no
/// checkpoint with a valid manifest.
std::optional<SavedAdapters> find_saved_adapters(const std::string& path);

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

/// Throws UsageError if `digest`, that of the weights at `path`, is not the one that the checkpoint `where` records.
void require_same_base(const SavedAdapters& adapters, const std::string& where, const std::string& path,
                       const std::string& digest);

}  // namespace aliquot
