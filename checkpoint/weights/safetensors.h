#pragma once
// Files of Hugging Face's safetensors format: eight bytes of length, a JSON header, and the tensors' bytes without a gap.

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
  std::string type;            // as the file has it: "F32", "BF16", "I64", ...
  std::optional<DType> dtype;  // nothing where no dtype here is that
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // its bytes, from the first tensor's on
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // in order of name
  std::map<std::string, std::string> metadata;
};

/// Reads the JSON of a file whose tensors take `data_bytes`. Nothing in it is trusted: the result's shapes, products and
/// sizes agree, and the tensors tile the data exactly, none named twice. Bounded by the text: nothing is built for a
/// value that does not belong there. Throws UsageError, a sentence that begins with `where`.
SafetensorsHeader parse_safetensors_header(std::string_view text, int64_t data_bytes, const std::string& where);

/// The text of a file that holds these, before the tensors' own bytes: length, header, padding to 8 bytes. Lays them out
/// in the order given, setting begin and end; name, type and shape are set.
std::string safetensors_prefix(std::vector<SafetensorsEntry>& tensors,
                               const std::map<std::string, std::string>& metadata);

/// A file opened for reading. Move-only.
class SafetensorsFile {
 public:
  /// Follows symbolic links: the name is the user's. Throws UsageError: absent, no regular file, malformed.
  static SafetensorsFile open(FileSystem& file_system, const std::filesystem::path& path);

  const SafetensorsHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return file_.path(); }
  /// Bytes of a tensor, from its byte `first` on. Throws FaultError.
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

/// A type's name in such a file: "F32".
std::string_view safetensors_type(DType dtype);

}  // namespace aliquot
