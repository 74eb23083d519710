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

/// Throws UsageError if a finite element of `from` has become infinite in `to`. `first` is the number of the first
/// element.
void refuse_overflow(const ExportedTensor& tensor, std::span<const std::byte> from, DType dtype,
                     std::span<const std::byte> to, int64_t first) {
  const int64_t from_bytes = element_bytes(tensor.dtype), to_bytes = element_bytes(dtype);
  for (int64_t i = 0; i < std::ssize(to) / to_bytes; ++i) {
    if (!std::isinf(element_value(dtype, to.data() + i * to_bytes))) continue;
    const double value = element_value(tensor.dtype, from.data() + i * from_bytes);
    if (std::isinf(value)) continue;
    throw UsageError(fmt::format("element {} of tensor {} is {:g}, which {} cannot represent: use another dtype",
                                 first + i, printable(tensor.name), value, name(dtype)));
  }
}

void make_directory(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw UsageError(fmt::format("cannot create directory {}: {}", directory.string(), error.message()));
}

}  // namespace

int64_t export_tensors(const std::vector<ExportedTensor>& tensors, const std::filesystem::path& directory,
                       const std::string& file_name, DType dtype, const VerifyProgress& progress) {
  if (tensors.empty()) throw UsageError("the checkpoint has no parameters to export");
  std::vector<SafetensorsEntry> entries;
  for (const ExportedTensor& tensor : tensors) {
    if (!is_convertible(dtype, tensor.dtype)) {
      throw UsageError(fmt::format("tensor {} has the dtype {}, which cannot be converted to {}",
                                   printable(tensor.name), name(tensor.dtype), name(dtype)));
    }
    SafetensorsEntry& entry = entries.emplace_back();
    entry.name = tensor.name;
    entry.type = safetensors_type(dtype);
    entry.shape = tensor.shape;
  }
  const std::string prefix =
      safetensors_prefix(entries, {{"format", "pt"}});  // the transformers library requires this entry
  const int64_t data_bytes = entries.back().end;
  make_directory(directory);
  AtomicFile file(directory, file_name);
  file.write(std::as_bytes(std::span(prefix)));
  std::vector<std::byte> from(kChunkElements * 8), to(kChunkElements * 8);
  int64_t done_bytes = 0;
  for (const ExportedTensor& tensor : tensors) {
    const int64_t count = checked_element_count(tensor.shape).value();
    for (int64_t first = 0; first < count; first += kChunkElements) {
      const int64_t part = std::min(kChunkElements, count - first);
      tensor.read(first, part, from.data());
      convert(dtype, to.data(), tensor.dtype, from.data(), part);
      const auto converted = std::span(to).first(static_cast<size_t>(part * element_bytes(dtype)));
      if (!is_exactly_convertible(dtype, tensor.dtype)) refuse_overflow(tensor, from, dtype, converted, first);
      file.write(converted);
      done_bytes += part * element_bytes(dtype);
      if (progress) progress(done_bytes, data_bytes);
    }
  }
  file.commit();
  return static_cast<int64_t>(prefix.size()) + data_bytes;
}

int64_t export_weights(const CheckpointReader& checkpoint, const std::filesystem::path& directory,
                       const std::string& file_name, DType dtype, const VerifyProgress& progress) {
  std::vector<ExportedTensor> tensors;
  for (const TensorEntry& tensor : checkpoint.manifest().tensors) {
    if (!tensor.path.starts_with(kParameters)) continue;
    tensors.push_back({tensor.path.substr(kParameters.size()), tensor.shape, tensor.dtype,
                       [&checkpoint, &tensor](int64_t first, int64_t count, std::byte* to) {
                         const int64_t width = element_bytes(tensor.dtype);
                         checkpoint.read(std::span(to, static_cast<size_t>(count * width)),
                                         tensor.file_offset + first * width);
                       }});
  }
  return export_tensors(tensors, directory, file_name, dtype, progress);
}

void write_file_atomically(const std::filesystem::path& directory, const std::string& file_name,
                           std::string_view text) {
  make_directory(directory);
  AtomicFile file(directory, file_name);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace aliquot
