#pragma once
// Storage of offloaded data between its uses, in host memory or in a file.

#include <array>
#include <memory>
#include <string>

#include "engine/plan/schedule.h"
#include "kernels/device/device.h"
#include "kernels/system/file.h"
#include "sharding/world.h"

namespace aliquot {

/// The directories for Offload::kDisk.
struct OffloadDirectories {
  std::string state, parameters;
};

/// The storage of one rank for optimizer state or for parameters: host memory, or an unnamed file that is deleted when
/// it is closed. During steps, copy_in() and copy_out() enqueue copies between a slot and a planned offset. With a
/// file, slots must extend to the next page boundary. Between steps, fetch(), store() and clear() access any bytes, and
/// block. Addresses from base() on identify these bytes, but can be dereferenced only if is_host_addressable() is true.
/// Used from the rank's own thread.
class OffloadStore {
 public:
  OffloadStore() = default;
  OffloadStore(const OffloadStore&) = delete;
  OffloadStore& operator=(const OffloadStore&) = delete;
  virtual ~OffloadStore() = default;

  virtual void copy_in(Stream& io, std::byte* slot, int64_t offset, int64_t size_bytes) = 0;
  virtual void copy_out(Stream& io, int64_t offset, const std::byte* slot, int64_t size_bytes) = 0;

  virtual std::byte* base() const = 0;
  virtual int64_t size_bytes() const = 0;
  virtual bool is_host_addressable() const = 0;
  /// Whether a new store contains only zeros.
  virtual bool is_zero_initialized() const = 0;
  virtual void fetch(void* to, const std::byte* from, int64_t size_bytes) const = 0;
  virtual void store(std::byte* to, const void* from, int64_t size_bytes) const = 0;
  virtual void clear(std::byte* at, int64_t size_bytes) const = 0;

  bool holds(const std::byte* address) const { return base() <= address && address < base() + size_bytes(); }
};

/// Allocates host memory, pinned if the device is a GPU. Throws UnavailableError if there is not enough memory.
std::unique_ptr<OffloadStore> make_host_offload_store(Device& device, int64_t size_bytes, std::string_view owner);
/// Creates a file in `directory` and reserves disk space for it. On failure, throws FaultError, which names the
/// directory.
std::unique_ptr<OffloadStore> make_disk_offload_store(FileSystem& file_system, const std::string& directory,
                                                      int64_t size_bytes);

/// The offload stores that a plan needs.
class OffloadStores {
 public:
  /// Collective if the plan needs any store. If one rank fails, all ranks throw: UsageError for Offload::kDisk without
  /// a directory, UnavailableError for Offload::kDisk with a GPU.
  OffloadStores(const Plan& plan, World& world, const OffloadDirectories& directories);

  /// The store for a space, or null if the plan has none.
  OffloadStore* of(Space space) const;
  /// The store that contains the address, or null.
  OffloadStore* find_store_of(const std::byte* address) const;

 private:
  std::array<std::unique_ptr<OffloadStore>, 2> offload_stores_;  // 0: for optimizer state; 1: for parameters
};

}  // namespace aliquot
