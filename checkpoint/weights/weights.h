#pragma once
// Weights that another program saved: one safetensors file, or an index of several, under the names used here.

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/weights/load_weights.h"
#include "checkpoint/weights/safetensors.h"

namespace aliquot {

/// A tensor of the files.
struct WeightTensor {
  std::string name;  // without "transformer." before it, and with "model." where it is Llama's
  const SafetensorsEntry* entry = nullptr;
  const SafetensorsFile* file = nullptr;
};

/// Opened for reading. Move-only; the tensors point into it.
class WeightFiles {
 public:
  /// FILE.safetensors, FILE.safetensors.index.json, or a folder that holds model.safetensors or its index. What is no
  /// parameter (attention masks, rotary tables, a head that is the table of tokens again) is left out, and told. Throws
  /// UsageError, naming the file: absent, malformed, an index that names files elsewhere or tensors that are not there.
  static WeightFiles open(FileSystem& file_system, const std::filesystem::path& path);

  const std::vector<WeightTensor>& tensors() const { return tensors_; }                 // in order of name
  const std::vector<std::string>& skipped_tensors() const { return skipped_tensors_; }  // names in the files
  const WeightTensor* find(std::string_view name) const;

 private:
  void add_file(SafetensorsFile file);
  void finish(const std::filesystem::path& path);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<WeightTensor> tensors_;
  std::vector<std::string> skipped_tensors_;
};

/// The files that an index's text names, each once. Throws UsageError, a sentence that begins with `where`: not JSON, no
/// weight_map, a name that is not of a safetensors file beside the index.
std::set<std::string> parse_weight_index(std::string_view text, const std::string& where);

/// Whether the path is weights of this kind, by its name and, of a folder, by what lies in it.
bool is_weights_path(const std::filesystem::path& path);

/// Reaches a tensor of the files as elements of any floating-point dtype: read() converts. One thread; write() is refused.
class WeightAccess final : public PieceAccess {
 public:
  /// Throws UsageError when the file's type cannot become `dtype`. `tensor` outlives it.
  WeightAccess(const WeightTensor& tensor, DType dtype);

  /// Elements [piece.offset + first, ... + count) of the tensor.
  void read(const StatePiece& piece, int64_t first, int64_t count, std::byte* to) const override;
  void write(const StatePiece& piece, int64_t first, int64_t count, const std::byte* from) const override;

 private:
  const WeightTensor& tensor_;
  DType dtype_;
};

/// Writes the files' tensors as a checkpoint of step 0, in fp32 and without an optimizer, to directory/step-00000000.
/// One process. Throws as open() and save() do. `scalars` are what the weights' own format says of their model.
struct ImportReport {
  std::filesystem::path path;
  size_t tensor_count = 0;
  std::vector<std::string> skipped_tensors;
  std::vector<std::string> rounded;  // float64 tensors, to the nearest fp32
};
ImportReport import_weights(Communicator& communicator, const std::filesystem::path& file,
                            const std::filesystem::path& directory, const std::map<std::string, Scalar>& scalars = {});

}  // namespace aliquot
