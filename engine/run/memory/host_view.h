#pragma once
// Host access to device memory and offload stores.

#include <cstdint>
#include <memory>

#include "engine/run/memory/offload_stores.h"

namespace aliquot {

/// Reads and writes memory during initialization and between steps. The caller must first wait for work on other
/// streams. All functions block. Used from the rank's own thread. The device and the offload stores must outlive it.
class HostView {
 public:
  HostView(Device& device, const OffloadStores& offload_stores);
  ~HostView();

  Device& device() const { return device_; }
  /// Whether the host can dereference the address.
  bool is_host_addressable(const std::byte* at) const;
  void fetch(void* to, const std::byte* from, int64_t size_bytes) const;
  void store(std::byte* to, const void* from, int64_t size_bytes) const;
  void clear(std::byte* at, int64_t size_bytes) const;

 private:
  Device& device_;
  const OffloadStores& offload_stores_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace aliquot
