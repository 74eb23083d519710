#include "checkpoint/weights/export_weights.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/file/convert.h"
#include "checkpoint/weights/safetensors.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr std::string_view kParameters = "parameters/";
constexpr int64_t kChunkElements = 512 << 10;

/// A file that is written under a temporary name and renamed by commit().
class AtomicFile {
 public:
  AtomicFile(const std::filesystem::path& directory, const std::string& name)
      : directory_(Directory::open(FileSystem::system(), directory)),
        name_(name),
        temporary_name_(kAttemptPrefix + name) {
    if (directory_.exists(name)) {
      throw UsageError(
          fmt::format("{} already exists: remove it, or choose another path", (directory / name).string()));
    }
    directory_.remove(temporary_name_);  // left behind by a killed process
    file_ = directory_.create(temporary_name_);
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile() {
    if (!committed_) directory_.remove(temporary_name_);
  }

  void write(std::span<const std::byte> bytes) {
    file_.write(bytes, end_bytes_);
    end_bytes_ += static_cast<int64_t>(bytes.size());
  }
  void commit() {
    file_.sync();
    file_.close();
    directory_.rename(temporary_name_, name_);
    committed_ = true;
    directory_.sync();
  }

 private:
  Directory directory_;
  std::string name_, temporary_name_;
  File file_;
  int64_t end_bytes_ = 0;
  bool committed_ = false;
};

std::vector<const TensorEntry*> parameters_of(const CheckpointReader& checkpoint, DType dtype) {
  std::vector<const TensorEntry*> parameters;
  for (const TensorEntry& tensor : checkpoint.manifest().tensors) {
    if (!tensor.path.starts_with(kParameters)) continue;
    if (!is_convertible(dtype, tensor.dtype)) {
      throw UsageError(fmt::format("tensor {} has the dtype {}, which cannot be converted to {}",
                                   printable(tensor.path), name(tensor.dtype), name(dtype)));
    }
    parameters.push_back(&tensor);
  }
  if (parameters.empty()) throw UsageError("the checkpoint has no parameters to export");
  return parameters;
}

/// Throws UsageError if a finite element of `from` has become infinite in `to`. `first` is the number of the first
/// element.
void refuse_overflow(const TensorEntry& tensor, std::span<const std::byte> from, DType dtype,
                     std::span<const std::byte> to, int64_t first) {
  const int64_t from_bytes = element_bytes(tensor.dtype), to_bytes = element_bytes(dtype);
  for (int64_t i = 0; i < std::ssize(to) / to_bytes; ++i) {
    if (!std::isinf(element_value(dtype, to.data() + i * to_bytes))) continue;
    const double value = element_value(tensor.dtype, from.data() + i * from_bytes);
    if (std::isinf(value)) continue;
    throw UsageError(fmt::format("element {} of tensor {} is {:g}, which {} cannot represent: use another dtype",
                                 first + i, printable(tensor.path), value, name(dtype)));
  }
}

void make_directory(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw UsageError(fmt::format("cannot create directory {}: {}", directory.string(), error.message()));
}

}  // namespace

int64_t export_weights(const CheckpointReader& checkpoint, const std::filesystem::path& directory,
                       const std::string& file_name, DType dtype, const VerifyProgress& progress) {
  const auto parameters = parameters_of(checkpoint, dtype);
  std::vector<SafetensorsEntry> entries;
  for (const TensorEntry* tensor : parameters) {
    SafetensorsEntry& entry = entries.emplace_back();
    entry.name = tensor->path.substr(kParameters.size());
    entry.type = safetensors_type(dtype);
    entry.shape = tensor->shape;
  }
  const std::string prefix =
      safetensors_prefix(entries, {{"format", "pt"}});  // the transformers library requires this entry
  const int64_t data_bytes = entries.back().end;
  make_directory(directory);
  AtomicFile file(directory, file_name);
  file.write(std::as_bytes(std::span(prefix)));
  std::vector<std::byte> from(kChunkElements * 8), to(kChunkElements * 8);
  int64_t done_bytes = 0;
  for (const TensorEntry* tensor : parameters) {
    const int64_t width = element_bytes(tensor->dtype), count = tensor->size_bytes / width;
    for (int64_t first = 0; first < count; first += kChunkElements) {
      const int64_t part = std::min(kChunkElements, count - first);
      checkpoint.read(std::span(from).first(static_cast<size_t>(part * width)), tensor->file_offset + first * width);
      convert(dtype, to.data(), tensor->dtype, from.data(), part);
      const auto converted = std::span(to).first(static_cast<size_t>(part * element_bytes(dtype)));
      if (!is_exactly_convertible(dtype, tensor->dtype)) refuse_overflow(*tensor, from, dtype, converted, first);
      file.write(converted);
      done_bytes += part * element_bytes(dtype);
      if (progress) progress(done_bytes, data_bytes);
    }
  }
  file.commit();
  return static_cast<int64_t>(prefix.size()) + data_bytes;
}

void write_file_atomically(const std::filesystem::path& directory, const std::string& file_name,
                           std::string_view text) {
  make_directory(directory);
  AtomicFile file(directory, file_name);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace aliquot
