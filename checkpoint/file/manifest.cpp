#include "checkpoint/file/manifest.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "checkpoint/file/hdf5_structure.h"
#include "checkpoint/file/manifest_json.h"
#include "checkpoint/hash/sha256.h"
#include "kernels/system/checkpoint_error.h"

namespace aliquot {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormatName = "aliquot checkpoint";
constexpr std::string_view kHashPrefix = "\"sha256\":\"", kHashSuffix = "\"}\n";
constexpr size_t kHashDigits = 64;

// JSON cannot represent NaN and infinities, so they are stored as "bits:" and 16 hexadecimal digits.
Json real_to_json(double value) {
  if (std::isfinite(value)) return value;
  return fmt::format("bits:{:016x}", std::bit_cast<uint64_t>(value));
}

double real_from_json(const Json& value) {
  if (value.is_number()) return value.get<double>();
  const auto text = value.get<std::string>();
  uint64_t bits = 0;
  const auto* end = text.data() + text.size();
  if (!text.starts_with("bits:") || text.size() != 21 || std::from_chars(text.data() + 5, end, bits, 16).ptr != end) {
    throw ManifestFormatError(
        "has an invalid floating-point number: expected a number, or 'bits:' and 16 hexadecimal digits");
  }
  return std::bit_cast<double>(bits);
}

template <typename... Ts>
struct Overload : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overload(Ts...) -> Overload<Ts...>;

Json scalar_to_json(const Scalar& scalar) {
  return std::visit(Overload{[](int64_t value) -> Json {
                               return {{"int64", value}};
                             },
                             [](double value) -> Json {
                               return {{"float64", real_to_json(value)}};
                             },
                             [](const std::string& value) -> Json {
                               return {{"string", value}};
                             },
                             [](const std::vector<int64_t>& values) -> Json {
                               return {{"int64", values}};
                             },
                             [](const std::vector<double>& values) -> Json {
                               Json list = Json::array();
                               for (double value : values) list.push_back(real_to_json(value));
                               return {{"float64", std::move(list)}};
                             }},
                    scalar);
}

Scalar scalar_from_json(const Json& json) {
  if (json_object(json).size() != 1)
    throw ManifestFormatError("has a scalar with no type or with several types: expected one type");
  const std::string type = json.begin().key();
  const Json& value = json.begin().value();
  if (type == "string") return value.get<std::string>();
  if (type == "int64" && value.is_array()) {
    std::vector<int64_t> values;
    for (const Json& each : value) values.push_back(json_integer(each));
    return values;
  }
  if (type == "int64") return json_integer(value);
  if (type != "float64") throw ManifestFormatError(fmt::format("has a scalar of unknown type \"{}\"", printable(type)));
  if (!value.is_array()) return real_from_json(value);
  std::vector<double> values;
  for (const Json& each : value) values.push_back(real_from_json(each));
  return values;
}

Json scalars_to_json(const std::map<std::string, Scalar>& scalars) {
  Json object = Json::object();
  for (const auto& [name, scalar] : scalars) object[name] = scalar_to_json(scalar);
  return object;
}

std::map<std::string, Scalar> scalars_from_json(const Json& object) {
  std::map<std::string, Scalar> scalars;
  for (const auto& [name, value] : json_object(object).items()) scalars[name] = scalar_from_json(value);
  return scalars;
}

Json tensor_to_json(const TensorEntry& tensor) {
  return {{"path", tensor.path},
          {"dtype", name(tensor.dtype)},
          {"shape", tensor.shape},
          {"bytes", tensor.size_bytes},
          {"offset", tensor.file_offset < 0 ? Json(nullptr) : Json(tensor.file_offset)}};
}

TensorEntry tensor_from_json(const Json& json) {
  TensorEntry tensor;
  tensor.path = json.at("path").get<std::string>();
  if (const std::string defect = path_defect(tensor.path); !defect.empty()) {
    throw ManifestFormatError(fmt::format("has a tensor whose path {}", defect));
  }
  const auto refuse = [&](std::string_view what) {
    throw ManifestFormatError(fmt::format("is invalid: tensor {} {}", printable(tensor.path), what));
  };
  const auto dtype = dtype_named(json.at("dtype").get<std::string>());
  if (!dtype) refuse("has an unknown dtype");
  tensor.dtype = *dtype;
  for (const Json& extent : json_list(json.at("shape"))) tensor.shape.push_back(json_integer(extent));
  const auto count = checked_element_count(tensor.shape);
  if (!count) refuse("has an invalid shape");
  tensor.size_bytes = *count * element_bytes(tensor.dtype);
  if (json_integer(json.at("bytes")) != tensor.size_bytes) refuse("has a byte count that does not match its shape");
  if (tensor.size_bytes > 0) tensor.file_offset = json_integer(json.at("offset"));
  if (tensor.size_bytes == 0 && !json.at("offset").is_null()) refuse("has an offset although it has no elements");
  return tensor;
}

void check_tensor_offsets(const Manifest& manifest) {
  std::vector<const TensorEntry*> placed;
  for (const TensorEntry& tensor : manifest.tensors) {
    if (tensor.size_bytes > 0) placed.push_back(&tensor);
  }
  std::sort(placed.begin(), placed.end(),
            [](const TensorEntry* a, const TensorEntry* b) { return a->file_offset < b->file_offset; });
  int64_t end = 0;
  for (const TensorEntry* tensor : placed) {
    if (tensor->file_offset < end) {
      throw ManifestFormatError(
          fmt::format("is invalid: tensor {} overlaps another one or has a negative offset", printable(tensor->path)));
    }
    if (tensor->size_bytes > manifest.file_bytes || tensor->file_offset > manifest.file_bytes - tensor->size_bytes) {
      throw ManifestFormatError(
          fmt::format("is invalid: tensor {} extends past the end of the file", printable(tensor->path)));
    }
    end = tensor->file_offset + tensor->size_bytes;
  }
}

void check_tensors(const Manifest& manifest) {
  if (!std::is_sorted(manifest.tensors.begin(), manifest.tensors.end(),
                      [](const TensorEntry& a, const TensorEntry& b) { return a.path < b.path; })) {
    throw ManifestFormatError("does not list its tensors sorted by path");
  }
  if (const std::string path = path_conflict(manifest.tensors); !path.empty()) {
    throw ManifestFormatError(
        fmt::format("uses the path {} for two tensors, or for a tensor and an HDF5 group", printable(path)));
  }
  check_tensor_offsets(manifest);
}

void parse_file_section(const Json& file, Manifest& manifest) {
  if (file.at("name").get<std::string>() != kStateFile || json_integer(file.at("tile_bytes")) != kTileBytes) {
    throw ManifestFormatError(
        fmt::format("has an unexpected file name or tile size: expected {} and {} bytes", kStateFile, kTileBytes));
  }
  manifest.file_bytes = json_integer(file.at("bytes"));
  const Json& tiles = json_list(file.at("crc32c"));
  if (manifest.file_bytes < kPageBytes || manifest.file_bytes % kPageBytes != 0 ||
      tile_count(manifest.file_bytes) != static_cast<int64_t>(tiles.size())) {
    throw ManifestFormatError(fmt::format(
        "has a file size of {} bytes, which is not a positive multiple of {} or does not match its {} checksums",
        manifest.file_bytes, kPageBytes, tiles.size()));
  }
  for (const Json& tile : tiles) {
    const auto text = tile.get<std::string>();
    uint32_t crc = 0;
    const auto* end = text.data() + text.size();
    if (text.size() != 8 || std::from_chars(text.data(), end, crc, 16).ptr != end)
      throw ManifestFormatError("has an invalid checksum: expected 8 hexadecimal digits");
    manifest.tile_crcs.push_back(crc);
  }
}

Manifest parse_manifest_json(std::string_view text) {
  const Json json = parse_json(text);
  if (json.at("format").get<std::string>() != kFormatName)
    throw ManifestFormatError(fmt::format("is not the manifest of a checkpoint: expected format \"{}\"", kFormatName));
  const int64_t version = json_integer(json.at("version"));
  if (version != kFormatVersion || !json_list(json.at("required_features")).empty()) {
    throw ManifestFormatError(fmt::format(
        "has format version {} or required features that this build cannot read: use a newer build", version));
  }
  Manifest manifest;
  manifest.step = json_integer(json.at("step"));
  if (manifest.step < 0) throw ManifestFormatError(fmt::format("has the negative step {}", manifest.step));
  manifest.attempt = json.at("attempt").get<std::string>();
  manifest.hdf5_version = json.at("hdf5_version").get<std::string>();
  parse_file_section(json.at("file"), manifest);
  for (const Json& tensor : json_list(json.at("tensors"))) manifest.tensors.push_back(tensor_from_json(tensor));
  check_tensors(manifest);
  manifest.scalars = scalars_from_json(json.at("scalars"));
  manifest.written_by = scalars_from_json(json.at("written_by"));
  return manifest;
}

void verify_manifest_hash(std::string_view text) {
  const size_t tail = kHashPrefix.size() + kHashDigits + kHashSuffix.size();
  if (text.size() < tail || !text.ends_with(kHashSuffix) ||
      text.substr(text.size() - tail, kHashPrefix.size()) != kHashPrefix) {
    throw ManifestFormatError("is truncated or corrupt: it does not end with its SHA-256");
  }
  const size_t digits = text.size() - kHashSuffix.size() - kHashDigits;
  Sha256 hash;
  hash.update(text.substr(0, digits));
  hash.update(std::string(kHashDigits, '0'));
  hash.update(kHashSuffix);
  if (hex(hash.finish()) != text.substr(digits, kHashDigits))
    throw ManifestFormatError("is corrupt: its SHA-256 does not match its contents");
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  Json json = {{"format", kFormatName},
               {"version", kFormatVersion},
               {"required_features", Json::array()},
               {"step", manifest.step},
               {"attempt", manifest.attempt},
               {"written_by", scalars_to_json(manifest.written_by)},
               {"scalars", scalars_to_json(manifest.scalars)},
               {"hdf5_version", manifest.hdf5_version}};
  Json tiles = Json::array();
  for (uint32_t crc : manifest.tile_crcs) tiles.push_back(fmt::format("{:08x}", crc));
  json["file"] = {
      {"name", kStateFile}, {"bytes", manifest.file_bytes}, {"tile_bytes", kTileBytes}, {"crc32c", std::move(tiles)}};
  Json tensors = Json::array();
  for (const TensorEntry& tensor : manifest.tensors) tensors.push_back(tensor_to_json(tensor));
  json["tensors"] = std::move(tensors);
  std::string text = json.dump();
  // The comma replaces the closing brace. The hash comes last, so that it can be verified before the text is parsed.
  text.back() = ',';
  text += kHashPrefix;
  const std::string digest = sha256_hex(text + std::string(kHashDigits, '0') + std::string(kHashSuffix));
  return text + digest + std::string(kHashSuffix);
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  try {
    verify_manifest_hash(text);
    return parse_manifest_json(text);
  } catch (const ManifestFormatError& defect) {
    throw CheckpointError(fmt::format("{} {}", where, defect.what()));
  } catch (const Json::exception&) {
    throw CheckpointError(fmt::format("{} lacks a required field, or a field has the wrong type", where));
  }
}

}  // namespace aliquot
