#pragma once
// Lets HDF5 work on bytes that we hold, so that it makes no system call of its own. Included by hdf5_*.cpp alone.

#include <array>
#include <cstddef>
#include <cstdint>
#include <hdf5.h>
#include <map>

namespace aliquot {

/// What HDF5 takes for a file. The calls may throw; HDF5 then fails the operation it is in.
class Hdf5FileBackend {
 public:
  Hdf5FileBackend() = default;
  Hdf5FileBackend(const Hdf5FileBackend&) = delete;
  Hdf5FileBackend& operator=(const Hdf5FileBackend&) = delete;
  virtual ~Hdf5FileBackend() = default;

  virtual int64_t end_bytes() const = 0;
  virtual void read(int64_t offset, int64_t count, std::byte* to) const = 0;
  virtual void write(int64_t offset, int64_t count, const std::byte* from) = 0;
  virtual void truncate(int64_t end_bytes) = 0;  // longer or shorter
};

/// A sparse file in memory: only pages that were written to take space, the rest reads as zeros.
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

/// Makes files opened with `access`, a file access list, use `bytes`, which outlives them. The caller holds the
/// library's lock. False when HDF5 refuses.
bool set_file_backend(hid_t access, Hdf5FileBackend& bytes);

}  // namespace aliquot
