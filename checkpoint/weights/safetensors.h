#pragma once
// The safetensors file format of Hugging Face: the length of the header in eight bytes, a JSON header, and the data of
// the tensors without gaps.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/formats/dtype.h"
#include "kernels/system/file.h"

namespace aliquot {

inline constexpr int64_t kSafetensorsHeaderLimit = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  std::string type;            // as in the file: "F32", "BF16", "I64", ...
  std::optional<DType> dtype;  // empty if no DType corresponds to `type`
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // byte range, relative to the end of the header
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // sorted by name
  std::map<std::string, std::string> metadata;
};

/// Parses the JSON header of a file with `data_bytes` bytes of tensor data. The text is untrusted: the function checks
/// that shapes and sizes agree, that the tensors cover the data without gaps and overlaps, and that names are unique.
/// Memory use is proportional to the text. Throws UsageError with a message that begins with `where`.
SafetensorsHeader parse_safetensors_header(std::string_view text, int64_t data_bytes, const std::string& where);

/// Returns the bytes of a file before the tensor data: length, header, and padding to 8 bytes. `tensors` have name,
/// type and shape; the function lays them out in the given order and sets `begin` and `end`.
std::string safetensors_prefix(std::vector<SafetensorsEntry>& tensors,
                               const std::map<std::string, std::string>& metadata);

/// A safetensors file opened for reading. Move-only.
class SafetensorsFile {
 public:
  /// Follows symbolic links, because the user chose the path. Throws UsageError if the file is absent, not a regular
  /// file, or malformed.
  static SafetensorsFile open(FileSystem& file_system, const std::filesystem::path& path);

  const SafetensorsHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return file_.path(); }
  /// Reads to.size() bytes of a tensor, from its byte `first`. Throws FaultError.
  void read(const SafetensorsEntry& tensor, int64_t first, std::span<std::byte> to) const {
    file_.read(to, data_offset_ + tensor.begin + first);
  }

 private:
  SafetensorsFile(File file, SafetensorsHeader header, int64_t data_offset)
      : file_(std::move(file)), header_(std::move(header)), data_offset_(data_offset) {}
  File file_;
  SafetensorsHeader header_;
  int64_t data_offset_;
};

/// Returns the name of a dtype in safetensors files, such as "F32".
std::string_view safetensors_type(DType dtype);

}  // namespace aliquot
