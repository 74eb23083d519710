#pragma once
// A device's memory, and the homes of what is offloaded, as the host reads and writes them.

#include <cstdint>
#include <memory>

#include "engine/run/memory/offload_stores.h"

namespace aliquot {

/// For set-up and between steps: what has been enqueued on other streams is waited for by whoever calls. Blocks. Used from
/// the rank's own thread; device and homes must outlive it.
class HostView {
 public:
  HostView(Device& device, const OffloadStores& offload_stores);
  ~HostView();

  Device& device() const { return device_; }
  /// The address can be followed.
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
