#pragma once
// Where what is offloaded lies between its uses.

#include <array>
#include <memory>
#include <string>

#include "engine/plan/schedule.h"
#include "kernels/device/device.h"
#include "kernels/system/file.h"
#include "sharding/world.h"

namespace aliquot {

/// Where a policy's kDisk is.
struct OffloadDirectories {
  std::string state, parameters;
};

/// One rank's bytes of one kind, in host memory or in a file that has no name and goes when the rank does. Used from the
/// rank's own thread. copy_in() and copy_out() enqueue; their offsets are the planned ones, and slots have room up to the
/// next page where the home is a file. Addresses name bytes: they can be followed only where is_host_addressable() says so, and
/// fetch(), store() and clear() take any, between steps, and block.
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
  /// A new one holds zeros.
  virtual bool is_zero_initialized() const = 0;
  virtual void fetch(void* to, const std::byte* from, int64_t size_bytes) const = 0;
  virtual void store(std::byte* to, const void* from, int64_t size_bytes) const = 0;
  virtual void clear(std::byte* at, int64_t size_bytes) const = 0;

  bool holds(const std::byte* address) const { return base() <= address && address < base() + size_bytes(); }
};

/// Pinned where the device is a GPU. Throws UnavailableError when there is not enough.
std::unique_ptr<OffloadStore> make_host_offload_store(Device& device, int64_t size_bytes, std::string_view owner);
/// A file in `directory`, its space reserved. Throws FaultError, naming the directory, where it cannot be made.
std::unique_ptr<OffloadStore> make_disk_offload_store(FileSystem& file_system, const std::string& directory,
                                                      int64_t size_bytes);

/// The homes that a plan needs.
class OffloadStores {
 public:
  /// Collective where the plan needs any: all ranks have theirs, or all throw. UsageError for a disk home with no directory,
  /// UnavailableError for one behind a GPU.
  OffloadStores(const Plan& plan, World& world, const OffloadDirectories& directories);

  /// Null where the plan has none.
  OffloadStore* of(Space space) const;
  /// The home that this address names a byte of, or null.
  OffloadStore* find_store_of(const std::byte* address) const;

 private:
  std::array<std::unique_ptr<OffloadStore>, 2> offload_stores_;  // of state, of parameters
};

}  // namespace aliquot
