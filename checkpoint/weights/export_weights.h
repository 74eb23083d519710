#pragma once
// Export of the parameters of a checkpoint to a safetensors file.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/verify.h"

namespace aliquot {

/// A tensor to write.
struct ExportedTensor {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat32;  // of the elements that `read` returns
  /// Reads `count` elements from `first` on. Called in ascending order, for each element once.
  std::function<void(int64_t first, int64_t count, std::byte* to)> read;
};

/// Writes the tensors, converted to `dtype`, to the safetensors file directory/file_name. Like export_weights().
int64_t export_tensors(const std::vector<ExportedTensor>& tensors, const std::filesystem::path& directory,
                       const std::string& file_name, DType dtype, const VerifyProgress& progress = {});

/// Writes each tensor "parameters/NAME" as NAME, converted to `dtype`, to the safetensors file directory/file_name. The
/// file appears under its name only when it is complete and durable. `checkpoint` must be verified. Uses a fixed amount
/// of memory. Returns the size of the file.
///
/// Throws UsageError if the file exists or the directory cannot be created. Also throws UsageError if the checkpoint
/// has no parameters, or if a parameter cannot be converted to `dtype`. Throws FaultError if a write fails.
int64_t export_weights(const CheckpointReader& checkpoint, const std::filesystem::path& directory,
                       const std::string& file_name, DType dtype, const VerifyProgress& progress = {});

/// Writes `text` to directory/file_name, with the same atomicity and errors as export_weights().
void write_file_atomically(const std::filesystem::path& directory, const std::string& file_name, std::string_view text);

}  // namespace aliquot
