#pragma once
// Weights that another program saved, as one safetensors file or as an index of several files. Names are converted to
// canonical names.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/weights/load_weights.h"
#include "checkpoint/weights/safetensors.h"

namespace aliquot {

/// One tensor of the files.
struct WeightTensor {
  std::string name;  // canonical: without the prefix "transformer."; tensors of Llama have the prefix "model."
  const SafetensorsEntry* entry = nullptr;
  const SafetensorsFile* file = nullptr;
};

/// Whether WeightFiles::open() leaves out an output head that is equal to the token embedding. Some files repeat the
/// embedding of a tied model as its head. An untied model needs its head even if the two are equal.
enum class EqualHead : uint8_t { kLeaveOut, kKeep };

/// Weight files opened for reading. Move-only. The tensors point into this object.
class WeightFiles {
 public:
  /// `path` is a .safetensors file, a .safetensors.index.json file, or a directory with model.safetensors or its index.
  /// Leaves out tensors that are not parameters: attention masks, rotary tables, and by default an output head equal to
  /// the token embedding. Throws UsageError, with the name of the file, if a file is absent or malformed, or if an
  /// index names files in other directories.
  static WeightFiles open(FileSystem& file_system, const std::filesystem::path& path,
                          EqualHead equal_head = EqualHead::kLeaveOut);

  const std::vector<WeightTensor>& tensors() const { return tensors_; }  // sorted by name
  /// The tensors that open() left out, by their names in the files.
  const std::vector<std::string>& skipped_tensors() const { return skipped_tensors_; }
  const WeightTensor* find(std::string_view name) const;

 private:
  void add_file(SafetensorsFile file);
  void finish(const std::filesystem::path& path);
  void leave_out_equal_head();

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<WeightTensor> tensors_;
  std::vector<std::string> skipped_tensors_;
};

/// Returns the names of the files that the text of an index lists, without duplicates. Throws UsageError if the
/// text is not JSON, has no weight_map, or names something other than a safetensors file in the same directory. The
/// message begins with `where`.
std::set<std::string> parse_weight_index(std::string_view text, const std::string& where);

/// Returns whether WeightFiles::open() can open the path, according to its suffix or, for a directory, to the files in
/// it.
bool is_weights_path(const std::filesystem::path& path);

/// Reads a tensor of the files as elements of `dtype`, converting them. Not thread-safe; write() always throws.
class WeightAccess final : public PieceAccess {
 public:
  /// Throws UsageError if the type in the file cannot be converted to `dtype`. `tensor` must outlive this object.
  WeightAccess(const WeightTensor& tensor, DType dtype);

  /// Reads `count` elements of the tensor, from element piece.offset + first. The piece must be one run.
  void read(const StatePiece& piece, int64_t first, int64_t count, std::byte* to) const override;
  void write(const StatePiece& piece, int64_t first, int64_t count, const std::byte* from) const override;

 private:
  const WeightTensor& tensor_;
  DType dtype_;
};

struct ImportReport {
  std::filesystem::path path;
  size_t tensor_count = 0;
  std::vector<std::string> skipped_tensors;
  std::vector<std::string> rounded;  // float64 tensors, which were rounded to fp32
};

/// Writes the tensors of the files as a checkpoint of step 0, in fp32 and without optimizer state, to
/// directory/step-00000000. `scalars` become the scalars of the checkpoint. Requires a communicator of one rank. Throws
/// like WeightFiles::open() and save().
ImportReport import_weights(Communicator& communicator, const std::filesystem::path& file,
                            const std::filesystem::path& directory, const std::map<std::string, Scalar>& scalars = {},
                            EqualHead equal_head = EqualHead::kLeaveOut);

}  // namespace aliquot
