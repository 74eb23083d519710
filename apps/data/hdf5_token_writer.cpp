#include <algorithm>
#include <cstring>
#include <fmt/format.h>

#include "apps/data/token_file_writer.h"
#include "checkpoint/file/hdf5_handle.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

Directory open_folder(const std::filesystem::path& path) {
  if (!path.has_filename()) throw UsageError(path.string() + ": expected the name of a file.");
  try {
    Directory folder = Directory::open(FileSystem::system(), folder_of(path));
    if (folder.exists(path.filename().string()))
      throw UsageError(path.string() + " already exists: remove it, or name another file.");
    return folder;
  } catch (const FaultError& error) {
    throw UsageError(error.what());
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

}  // namespace

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, int bytes_per_token)
    : path_(path),
      bytes_per_token_(static_cast<size_t>(bytes_per_token)),
      directory_(open_folder(path)),
      spool_(directory_.create_unnamed()) {
  buffer_.reserve(kBufferBytes);
}

void TokenFileWriter::append(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    if (buffer_.size() + bytes_per_token_ > kBufferBytes) flush();
    const auto at = buffer_.size();
    buffer_.resize(at + bytes_per_token_);
    std::memcpy(buffer_.data() + at, &token, bytes_per_token_);  // little-endian: the lower bytes are first
  }
  token_count_ += static_cast<int64_t>(tokens.size());
}

void TokenFileWriter::flush() {
  spool_.write(buffer_, spooled_bytes_);
  spooled_bytes_ += static_cast<int64_t>(buffer_.size());
  buffer_.clear();
}

void TokenFileWriter::write_hdf5(const std::filesystem::path& path, const TokenFileFacts& facts) {
  const Hdf5Lock lock;
  Hdf5Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose,
                  "create " + path.string());
  const auto count = static_cast<hsize_t>(token_count_);
  const Hdf5Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose, "make the extents of 'tokens'");
  const hid_t type = bytes_per_token_ == 2 ? H5T_STD_U16LE : H5T_STD_U32LE;
  const Hdf5Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "make a list of properties");
  // Without times, files of the same tokens have the same bytes.
  hdf5_checked(H5Pset_obj_track_times(properties.get(), false), "disable object times");
  Hdf5Handle dataset(H5Dcreate2(file.get(), "tokens", type, space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT),
                     H5Dclose, "create the dataset 'tokens'");
  write_facts(dataset.get(), facts);
  buffer_.resize(kBufferBytes);
  for (int64_t at = 0; at < spooled_bytes_; at += static_cast<int64_t>(kBufferBytes)) {
    const std::span part = std::span(buffer_).first(
        static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(kBufferBytes), spooled_bytes_ - at)));
    spool_.read(part, at);
    const hsize_t first = static_cast<hsize_t>(at) / bytes_per_token_, length = part.size() / bytes_per_token_;
    const Hdf5Handle memory(H5Screate_simple(1, &length, nullptr), H5Sclose, "make the extents of a part of 'tokens'");
    hdf5_checked(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &first, nullptr, &length, nullptr),
                 "select a part of 'tokens'");
    hdf5_checked(H5Dwrite(dataset.get(), type, memory.get(), space.get(), H5P_DEFAULT, part.data()),
                 "write the dataset 'tokens' to " + path.string());
  }
  dataset.close("write the dataset 'tokens' to " + path.string());
  file.close("close " + path.string());
}

void TokenFileWriter::finish(const TokenFileFacts& facts) {
  const std::string name = path_.filename().string(), partial = name + ".partial";
  flush();
  try {
    write_hdf5(folder_of(path_) / partial, facts);
    directory_.open_for_writing(partial, false).sync();
    directory_.rename(partial, name);
    directory_.sync();
  } catch (...) {
    directory_.remove(partial);
    throw;
  }
}

}  // namespace aliquot
