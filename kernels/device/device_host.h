#pragma once
// The base class of all host devices.

#include "kernels/device/device.h"
#include "kernels/device/host_event.h"
#include "kernels/system/thread_pool.h"

namespace aliquot {

/// Implements all functions of a host device except make_stream(). Tests have a host device with a different
/// make_stream(), whose streams reorder work.
class HostDeviceBase : public Device {
 public:
  explicit HostDeviceBase(int thread_count) : pool_(thread_count) {}

  DeviceKind kind() const override { return DeviceKind::kHost; }
  Buffer allocate(int64_t size_bytes, Category category, std::string_view owner) override;
  Buffer allocate_host(int64_t size_bytes, std::string_view owner) override {
    return allocate(size_bytes, Category::kArena, owner);
  }
  std::unique_ptr<Event> make_event() override;
  const Kernels& kernels() const override;

 protected:
  ThreadPool& pool() { return pool_; }
  int thread_count() const { return pool_.thread_count(); }
  /// Creates the timeline of a new stream. It exists until the device is destroyed.
  HostTimeline& add_timeline() { return timelines_.add(); }

 private:
  ThreadPool pool_;
  HostTimelines timelines_;
};

}  // namespace aliquot
