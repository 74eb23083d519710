#pragma once
// An HDF5 file driver over memory or over verified bytes, so that HDF5 makes no file system calls. Only hdf5_*.cpp
// include this file.

#include <array>
#include <cstddef>
#include <cstdint>
#include <hdf5.h>
#include <map>

namespace aliquot {

/// The storage behind an HDF5 file. A call that throws makes the current HDF5 operation fail.
class Hdf5FileBackend {
 public:
  Hdf5FileBackend() = default;
  Hdf5FileBackend(const Hdf5FileBackend&) = delete;
  Hdf5FileBackend& operator=(const Hdf5FileBackend&) = delete;
  virtual ~Hdf5FileBackend() = default;

  virtual int64_t end_bytes() const = 0;
  virtual void read(int64_t offset, int64_t count, std::byte* to) const = 0;
  virtual void write(int64_t offset, int64_t count, const std::byte* from) = 0;
  virtual void truncate(int64_t end_bytes) = 0;  // may also extend the file
};

/// A sparse file in memory. Only written pages use memory; all other bytes read as zero.
class SparseMemoryBackend final : public Hdf5FileBackend {
 public:
  int64_t end_bytes() const override { return end_bytes_; }
  void read(int64_t offset, int64_t count, std::byte* to) const override;
  void write(int64_t offset, int64_t count, const std::byte* from) override;
  void truncate(int64_t end_bytes) override { end_bytes_ = end_bytes; }

 private:
  static constexpr int64_t kPage = 4096;
  std::map<int64_t, std::array<std::byte, kPage>> pages_;
  int64_t end_bytes_ = 0;
};

/// Makes files opened with the file access property list `access` use `backend`, which must outlive them. The caller
/// holds an Hdf5Lock. Returns false if HDF5 reports an error.
bool set_file_backend(hid_t access, Hdf5FileBackend& backend);

}  // namespace aliquot
