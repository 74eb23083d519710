#pragma once
// A device's memory as the host reads and writes it.

#include <cstdint>
#include <memory>

#include "kernels/device.h"

namespace aliquot {

/// For set-up and between steps: what has been enqueued on other streams is waited for by whoever calls. Blocks. Used from
/// the rank's own thread; the device must outlive it.
class HostView {
 public:
  explicit HostView(Device& device);
  ~HostView();

  Device& device() const { return device_; }
  /// The device computes in host memory: its addresses can be followed.
  bool direct() const { return device_.kind() == DeviceKind::kHost; }
  void fetch(void* to, const std::byte* from, int64_t size_bytes) const;
  void store(std::byte* to, const void* from, int64_t size_bytes) const;
  void clear(std::byte* at, int64_t size_bytes) const;

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace aliquot
