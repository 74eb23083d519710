#include "checkpoint/weights/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "checkpoint/file/tensor_entry.h"
#include "checkpoint/weights/safetensors_sax.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr int64_t kHeaderLengthBytes = 8;

struct ElementType {
  std::string_view name;
  int64_t bytes;
  std::optional<DType> dtype;
};
constexpr std::array kElementTypes{ElementType{"F32", 4, DType::kFloat32},
                                   ElementType{"BF16", 2, DType::kBFloat16},
                                   ElementType{"F16", 2, DType::kFloat16},
                                   ElementType{"F64", 8, DType::kFloat64},
                                   ElementType{"I16", 2, DType::kInt16},
                                   ElementType{"U8", 1, DType::kUInt8},
                                   ElementType{"BOOL", 1, {}},
                                   ElementType{"I8", 1, {}},
                                   ElementType{"F8_E4M3", 1, {}},
                                   ElementType{"F8_E5M2", 1, {}},
                                   ElementType{"U16", 2, {}},
                                   ElementType{"I32", 4, {}},
                                   ElementType{"U32", 4, {}},
                                   ElementType{"I64", 8, {}},
                                   ElementType{"U64", 8, {}}};

void check_entry(SafetensorsEntry& tensor) {
  const auto refuse = [&](const std::string& what) {
    throw SafetensorsFormatError(fmt::format("is invalid: tensor {} {}", printable(tensor.name), what));
  };
  const auto* type = std::find_if(kElementTypes.begin(), kElementTypes.end(),
                                  [&](const ElementType& t) { return t.name == tensor.type; });
  if (type == kElementTypes.end()) refuse(fmt::format("has the unknown type {}", printable(tensor.type)));
  tensor.dtype = type->dtype;
  const auto count = checked_element_count(tensor.shape);
  if (!count) refuse("has an invalid shape");
  if (tensor.begin > tensor.end) refuse("ends before it begins");
  if (tensor.end - tensor.begin != *count * type->bytes) refuse("has a byte range that does not match its shape");
}

void check_tiling(std::vector<SafetensorsEntry>& tensors, int64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  int64_t end = 0;
  for (const SafetensorsEntry& tensor : tensors) {
    if (tensor.begin != end) {
      throw SafetensorsFormatError(fmt::format("is invalid: tensor {} {}", printable(tensor.name),
                                               tensor.begin < end ? "overlaps another one" : "has a gap before it"));
    }
    end = tensor.end;
  }
  if (end != data_bytes) {
    throw SafetensorsFormatError(
        fmt::format("is invalid: its header describes {} bytes of tensor data, but the file has {}", end, data_bytes));
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, int64_t data_bytes, const std::string& where) {
  try {
    if (!text.starts_with('{'))
      throw SafetensorsFormatError("is not a safetensors file: its header is not a JSON object");
    // The parser stops at a NUL and would accept anything after it.
    if (text.find('\0') != std::string_view::npos)
      throw SafetensorsFormatError("has a header that is not JSON: it contains a NUL");
    SafetensorsSax sax;
    nlohmann::json::sax_parse(text.begin(), text.end(), &sax);
    SafetensorsHeader header = sax.finish();
    for (SafetensorsEntry& tensor : header.tensors) check_entry(tensor);
    check_tiling(header.tensors, data_bytes);
    std::sort(header.tensors.begin(), header.tensors.end(),
              [](const SafetensorsEntry& a, const SafetensorsEntry& b) { return a.name < b.name; });
    return header;
  } catch (const SafetensorsFormatError& defect) {
    throw UsageError(fmt::format("{} {}", where, defect.what()));
  }
}

std::string safetensors_prefix(std::vector<SafetensorsEntry>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  int64_t end = 0;
  for (SafetensorsEntry& tensor : tensors) {
    tensor.begin = end;
    const auto* type = std::find_if(kElementTypes.begin(), kElementTypes.end(),
                                    [&](const ElementType& t) { return t.name == tensor.type; });
    tensor.end = end += *checked_element_count(tensor.shape) * type->bytes;
    json[tensor.name] = {{"dtype", tensor.type}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(kHeaderLengthBytes, '\0');
  for (size_t i = 0; i < length.size(); ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  return length + text;
}

SafetensorsFile SafetensorsFile::open(FileSystem& file_system, const std::filesystem::path& path) {
  const auto read_prefix = [&](const File& file, int64_t offset, int64_t count) {
    std::string text(static_cast<size_t>(count), '\0');
    file.read(std::as_writable_bytes(std::span(text)), offset);
    return text;
  };
  try {
    std::error_code error;
    const std::filesystem::path real = std::filesystem::canonical(path, error);
    if (error) throw FaultError(fmt::format("cannot open {}: {}", path.string(), error.message()));
    File file = Directory::open(file_system, real.parent_path()).open_for_reading(real.filename());
    if (!file.is_regular()) throw FaultError(fmt::format("{} is not a regular file", path.string()));
    const int64_t file_bytes = file.size_bytes();
    if (file_bytes < kHeaderLengthBytes)
      throw FaultError(fmt::format("{} is too short for a safetensors file", path.string()));
    uint64_t header_bytes = 0;
    const std::string length = read_prefix(file, 0, kHeaderLengthBytes);
    for (size_t i = 0; i < length.size(); ++i) {
      header_bytes |= static_cast<uint64_t>(static_cast<unsigned char>(length[i])) << (8 * i);
    }
    const int64_t limit_bytes = std::min<int64_t>(kSafetensorsHeaderLimit, file_bytes - kHeaderLengthBytes);
    if (header_bytes > static_cast<uint64_t>(limit_bytes)) {
      throw FaultError(fmt::format(
          "{} is not a safetensors file: its first 8 bytes declare a header of {} bytes, but at most {} bytes are "
          "possible in this file",
          path.string(), header_bytes, limit_bytes));
    }
    const int64_t data_offset = kHeaderLengthBytes + static_cast<int64_t>(header_bytes);
    const std::string text = read_prefix(file, kHeaderLengthBytes, static_cast<int64_t>(header_bytes));
    return {std::move(file), parse_safetensors_header(text, file_bytes - data_offset, path.string()), data_offset};
  } catch (const FaultError& error) {
    throw UsageError(error.what());
  }
}

std::string_view safetensors_type(DType dtype) {
  return std::find_if(kElementTypes.begin(), kElementTypes.end(),
                      [&](const ElementType& t) { return t.dtype == dtype; })
      ->name;
}

}  // namespace aliquot
