#include <algorithm>
#include <fmt/format.h>
#include <random>

#include "apps/data/token_file_writer.h"
#include "checkpoint/file/hdf5_handle.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

Directory open_folder(FileSystem& system, const std::filesystem::path& path) {
  if (!path.has_filename()) throw UsageError(path.string() + ": expected the name of a file.");
  try {
    Directory folder = Directory::open(system, folder_of(path));
    if (folder.exists(path.filename().string()))
      throw UsageError(path.string() + " already exists: remove it, or name another file.");
    return folder;
  } catch (const FaultError& error) {
    throw UsageError(fmt::format("{}: {}", path.string(), error.what()));
  }
}

void write_attribute(hid_t dataset, const char* name, hid_t type, const void* value) {
  const std::string what = std::string("write the attribute ") + name;
  const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose, what);
  Hdf5Handle attribute(H5Acreate2(dataset, name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose, what);
  const hid_t memory_type = H5Tget_class(type) == H5T_INTEGER ? H5T_NATIVE_INT64 : type;
  hdf5_checked(H5Awrite(attribute.get(), memory_type, value), what);
  attribute.close(what);
}

void write_facts(hid_t dataset, const TokenFileFacts& facts) {
  write_attribute(dataset, "vocabulary_size", H5T_STD_I64LE, &facts.vocabulary_size);
  write_attribute(dataset, "end_of_text", H5T_STD_I64LE, &facts.end_of_text);
  write_attribute(dataset, "document_count", H5T_STD_I64LE, &facts.document_count);
  const Hdf5Handle text(H5Tcopy(H5T_C_S1), H5Tclose, "make a type of text");
  hdf5_checked(H5Tset_size(text.get(), std::max<size_t>(1, facts.tokenizer_sha256.size())), "make a type of text");
  write_attribute(dataset, "tokenizer_sha256", text.get(), facts.tokenizer_sha256.data());
}

/// Makes a contiguous dataset of the bytes in the spool, with rows of `row` elements, or one dimension if `row` is 1.
Hdf5Handle write_dataset(hid_t file, const std::string& name, hid_t type, hsize_t row, Spool& spool) {
  const hsize_t row_bytes = row * H5Tget_size(type), rows = static_cast<hsize_t>(spool.size_bytes()) / row_bytes;
  const int rank = row == 1 ? 1 : 2;
  const hsize_t extents[] = {rows, row};
  const Hdf5Handle space(H5Screate_simple(rank, extents, nullptr), H5Sclose, "make the extents of " + name);
  const Hdf5Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "make a list of properties");
  // Without times, files of the same tokens have the same bytes.
  hdf5_checked(H5Pset_obj_track_times(properties.get(), false), "disable object times");
  Hdf5Handle dataset(H5Dcreate2(file, name.c_str(), type, space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT),
                     H5Dclose, "create the dataset " + name);
  spool.for_each_part([&](std::span<const std::byte> part, int64_t offset) {
    const hsize_t first[] = {static_cast<hsize_t>(offset) / row_bytes, 0}, length[] = {part.size() / row_bytes, row};
    const Hdf5Handle memory(H5Screate_simple(rank, length, nullptr), H5Sclose, "make the extents of a part of " + name);
    hdf5_checked(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, first, nullptr, length, nullptr),
                 "select a part of " + name);
    hdf5_checked(H5Dwrite(dataset.get(), type, memory.get(), space.get(), H5P_DEFAULT, part.data()),
                 "write the dataset " + name);
  });
  return dataset;
}

std::string random_suffix() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

}  // namespace

Spool::Spool(const Directory& directory) : file_(directory.create_unnamed()) {}

void Spool::append(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void Spool::flush() {
  file_.write(buffer_, spooled_bytes_);
  spooled_bytes_ += static_cast<int64_t>(buffer_.size());
  buffer_.clear();
}

void Spool::for_each_part(const std::function<void(std::span<const std::byte>, int64_t)>& visit) {
  flush();
  buffer_.resize(kBufferBytes);
  for (int64_t at = 0; at < spooled_bytes_; at += static_cast<int64_t>(kBufferBytes)) {
    const auto count = std::min(static_cast<int64_t>(kBufferBytes), spooled_bytes_ - at);
    const std::span part = std::span(buffer_).first(static_cast<size_t>(count));
    file_.read(part, at);
    visit(part, at);
  }
}

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, int bytes_per_token, FileSystem& system)
    : path_(path),
      bytes_per_token_(static_cast<size_t>(bytes_per_token)),
      directory_(open_folder(system, path)),
      tokens_(directory_),
      loss_ranges_(directory_),
      tokenizer_(directory_) {}

void TokenFileWriter::append(std::span<const int32_t> tokens) {
  for (const int32_t& token : tokens)  // little-endian: the lower bytes are first
    tokens_.append(std::as_bytes(std::span(&token, 1)).first(bytes_per_token_));
  token_count_ += static_cast<int64_t>(tokens.size());
}

void TokenFileWriter::append_with_loss_from(std::span<const int32_t> tokens, int64_t first) {
  const int64_t range[] = {token_count_ + first, token_count_ + static_cast<int64_t>(tokens.size())};
  loss_ranges_.append(std::as_bytes(std::span(range)));
  loss_token_count_ += range[1] - range[0];
  append(tokens);
}

void TokenFileWriter::write_hdf5(const std::filesystem::path& path, const TokenFileFacts& facts) {
  const Hdf5Lock lock;
  Hdf5Handle file(H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT), H5Fclose, "create " + path.string());
  Hdf5Handle dataset =
      write_dataset(file.get(), "tokens", bytes_per_token_ == 2 ? H5T_STD_U16LE : H5T_STD_U32LE, 1, tokens_);
  write_facts(dataset.get(), facts);
  dataset.close("write the dataset tokens to " + path.string());
  if (loss_token_count_ > 0)
    write_dataset(file.get(), "loss_ranges", H5T_STD_I64LE, 2, loss_ranges_).close("write the dataset loss_ranges");
  if (!facts.tokenizer_json.empty()) {
    tokenizer_.append(std::as_bytes(std::span(facts.tokenizer_json)));
    write_dataset(file.get(), "tokenizer_json", H5T_STD_U8LE, 1, tokenizer_).close("write the dataset tokenizer_json");
  }
  file.close("close " + path.string());
}

/// The temporary name is random, so two commands that write the same file at the same time do not disturb each other.
void TokenFileWriter::finish(const TokenFileFacts& facts) {
  const std::string name = path_.filename().string(), partial = fmt::format("{}.{}.partial", name, random_suffix());
  try {
    write_hdf5(folder_of(path_) / partial, facts);
    directory_.open_for_writing(partial, false).sync();
    directory_.rename_file(partial, name);
    directory_.sync();
  } catch (...) {
    directory_.remove(partial);
    throw;
  }
}

}  // namespace aliquot
