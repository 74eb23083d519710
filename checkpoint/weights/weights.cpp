#include "checkpoint/weights/weights.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

#include "checkpoint/file/convert.h"
#include "checkpoint/file/manifest_json.h"
#include "checkpoint/file/tensor_entry.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr const char* kSingleFileName = "model.safetensors";
constexpr std::string_view kIndexSuffix = ".index.json";
constexpr int64_t kIndexBytesLimit = 32 << 20;
// The size of the buffers for conversion and comparison.
constexpr int64_t kConvertBytes = 256 << 10;

/// Returns the name as in published files: without a prefix for GPT-2, and with "model." for Llama. The given name may
/// have the module prefix "transformer." or "model.", or none.
std::string canonical_name(std::string_view name) {
  for (const std::string_view prefix : {"transformer.", "model."}) {
    if (!name.starts_with(prefix)) continue;
    name.remove_prefix(prefix.size());
    break;
  }
  for (const std::string_view llama_prefix : {"embed_tokens.", "layers.", "norm."}) {
    if (name.starts_with(llama_prefix)) return "model." + std::string(name);
  }
  return std::string(name);
}

/// Returns whether the tensor is a buffer that PyTorch modules save besides their parameters.
bool is_module_buffer(const SafetensorsEntry& entry, std::string_view name) {
  const bool mask = name.ends_with(".attn.bias") && entry.shape.size() == 4;
  return mask || name.ends_with(".attn.masked_bias") || name.ends_with("rotary_emb.inv_freq");
}

/// Returns the names of the files that an index lists. The files are in the directory of the index.
std::set<std::string> read_index_files(FileSystem& file_system, const std::filesystem::path& path) {
  try {
    const auto real = std::filesystem::canonical(path);
    const File file = Directory::open(file_system, real.parent_path()).open_for_reading(real.filename());
    const int64_t size_bytes = file.is_regular() ? file.size_bytes() : kIndexBytesLimit + 1;
    if (size_bytes > kIndexBytesLimit) throw UsageError(fmt::format("{} is not an index of weights", path.string()));
    std::string text(static_cast<size_t>(size_bytes), '\0');
    file.read(std::as_writable_bytes(std::span(text)), 0);
    return parse_weight_index(text, path.string());
  } catch (const FaultError& error) {
    throw UsageError(error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    throw UsageError(fmt::format("cannot open {}: {}", path.string(), error.code().message()));
  }
}

std::filesystem::path resolve_weights_path(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return path;
  const auto one = path / kSingleFileName;
  return std::filesystem::exists(one, error) ? one : std::filesystem::path(one.string() + std::string(kIndexSuffix));
}

bool same_bytes(const WeightTensor& a, const WeightTensor& b) {
  const int64_t total = a.entry->end - a.entry->begin;
  if (a.entry->type != b.entry->type || a.entry->shape != b.entry->shape) return false;
  std::vector<std::byte> of_a(kConvertBytes), of_b(kConvertBytes);
  for (int64_t done = 0; done < total; done += kConvertBytes) {
    const auto count = static_cast<size_t>(std::min(kConvertBytes, total - done));
    a.file->read(*a.entry, done, std::span(of_a).first(count));
    b.file->read(*b.entry, done, std::span(of_b).first(count));
    if (!std::equal(of_a.begin(), of_a.begin() + static_cast<std::ptrdiff_t>(count), of_b.begin())) return false;
  }
  return true;
}

}  // namespace

std::set<std::string> parse_weight_index(std::string_view text, const std::string& where) {
  try {
    std::set<std::string> files;
    const auto json = parse_json(text);
    for (const auto& [tensor, file] : json_object(json.at("weight_map")).items()) {
      const auto name = file.get<std::string>();
      if (!path_defect(name).empty() || name.find('/') != std::string::npos || !name.ends_with(".safetensors")) {
        throw ManifestFormatError(fmt::format(
            "lists {}, which is not the name of a safetensors file in the same directory", printable(name)));
      }
      files.insert(name);
    }
    if (files.empty()) throw ManifestFormatError("lists no files");
    return files;
  } catch (const ManifestFormatError& defect) {
    throw UsageError(fmt::format("{} {}", where, defect.what()));
  } catch (const nlohmann::ordered_json::exception&) {
    throw UsageError(
        fmt::format("{} is not an index of weights: it has no weight_map from tensors to file names", where));
  }
}

WeightFiles WeightFiles::open(FileSystem& file_system, const std::filesystem::path& given, EqualHead equal_head) {
  const std::filesystem::path path = resolve_weights_path(given);
  WeightFiles weights;
  if (path.string().ends_with(kIndexSuffix)) {
    for (const std::string& name : read_index_files(file_system, path)) {
      weights.add_file(SafetensorsFile::open(file_system, path.parent_path() / name));
    }
  } else {
    weights.add_file(SafetensorsFile::open(file_system, path));
  }
  weights.finish(path);
  if (equal_head == EqualHead::kLeaveOut) weights.leave_out_equal_head();
  return weights;
}

void WeightFiles::add_file(SafetensorsFile file) {
  files_.push_back(std::make_unique<SafetensorsFile>(std::move(file)));
  for (const SafetensorsEntry& entry : files_.back()->header().tensors) {
    const std::string name = canonical_name(entry.name);
    if (is_module_buffer(entry, name)) {
      skipped_tensors_.push_back(entry.name);
    } else {
      tensors_.push_back({name, &entry, files_.back().get()});
    }
  }
}

void WeightFiles::finish(const std::filesystem::path& path) {
  std::sort(tensors_.begin(), tensors_.end(),
            [](const WeightTensor& a, const WeightTensor& b) { return a.name < b.name; });
  for (size_t i = 1; i < tensors_.size(); ++i) {
    if (tensors_[i].name != tensors_[i - 1].name) continue;
    throw UsageError(fmt::format("{} has two tensors named {}", path.string(), printable(tensors_[i].name)));
  }
}

void WeightFiles::leave_out_equal_head() {
  const WeightTensor *head = find("lm_head.weight"), *embedding = find("wte.weight");
  if (embedding == nullptr) embedding = find("model.embed_tokens.weight");
  if (head == nullptr || embedding == nullptr || !same_bytes(*head, *embedding)) return;
  skipped_tensors_.push_back(head->entry->name);
  tensors_.erase(tensors_.begin() + (head - tensors_.data()));
}

const WeightTensor* WeightFiles::find(std::string_view name) const {
  const auto found = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                      [](const WeightTensor& a, std::string_view b) { return a.name < b; });
  return found == tensors_.end() || found->name != name ? nullptr : &*found;
}

bool is_weights_path(const std::filesystem::path& path) {
  if (path.string().ends_with(".safetensors") || path.string().ends_with(".safetensors.index.json")) return true;
  std::error_code error;
  return std::filesystem::is_directory(path, error) && std::filesystem::exists(resolve_weights_path(path), error);
}

WeightAccess::WeightAccess(const WeightTensor& tensor, DType dtype) : tensor_(tensor), dtype_(dtype) {
  if (tensor.entry->dtype && is_convertible(dtype, *tensor.entry->dtype)) return;
  throw UsageError(fmt::format("tensor {} of {} has the type {}, which cannot be converted to {}",
                               printable(tensor.name), tensor.file->path().string(), printable(tensor.entry->type),
                               aliquot::name(dtype)));
}

void WeightAccess::read(const StatePiece& piece, int64_t first, int64_t count, std::byte* to) const {
  const DType from = *tensor_.entry->dtype;
  const int64_t width = element_bytes(from);
  if (from == dtype_) {
    return tensor_.file->read(*tensor_.entry, (piece.offset + first) * width, {to, static_cast<size_t>(count * width)});
  }
  std::vector<std::byte> chunk(kConvertBytes);
  for (int64_t done = 0; done < count; done += kConvertBytes / width) {
    const int64_t part = std::min(count - done, kConvertBytes / width);
    tensor_.file->read(*tensor_.entry, (piece.offset + first + done) * width,
                       std::span(chunk).first(static_cast<size_t>(part * width)));
    convert(dtype_, to + done * element_bytes(dtype_), from, chunk.data(), part);
  }
}

void WeightAccess::write(const StatePiece&, int64_t, int64_t, const std::byte*) const {
  throw FaultError("WeightAccess::write() was called: weight files can only be read");
}

}  // namespace aliquot
