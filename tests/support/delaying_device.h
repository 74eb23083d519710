#pragma once
// A host device that delays work of some lanes at random. Work runs on real threads, so its order varies between runs.

#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/host_stream.h"

namespace aliquot::test {

/// A stream that sleeps before roughly half of its work items, each time for a random duration of up to `max_delay`.
class DelayingStream final : public HostStream {
 public:
  DelayingStream(std::unique_ptr<Stream> inner, std::chrono::microseconds max_delay, uint64_t seed)
      : HostStream(inner->lane(), as_host_stream(*inner).pool()),
        inner_(std::move(inner)),
        max_delay_(max_delay),
        random_(seed) {}

  void record(Event& event) override { inner_->record(event); }
  void wait(const Event& event) override { inner_->wait(event); }
  void wait_for(Gate gate) override { as_host_stream(*inner_).wait_for(std::move(gate)); }
  void synchronize() override { inner_->synchronize(); }
  void run(Task work) override {
    const uint64_t bits = random_();
    if (bits % 2 == 0) {
      const auto delay = max_delay_ * static_cast<int64_t>(bits / 2 % 1024) / 1024;
      inner_->run([delay] { std::this_thread::sleep_for(delay); });
    }
    inner_->run(std::move(work));
  }

 private:
  std::unique_ptr<Stream> inner_;
  std::chrono::microseconds max_delay_;
  std::mt19937_64 random_;  // used only by the rank's thread, in run()
};

/// Forwards all calls except make_stream() to an inner host device. The ledger of the inner device counts the memory,
/// and the ledger of this device remains empty.
class DelayingDevice final : public Device {
 public:
  DelayingDevice(std::vector<Lane> delayed_lanes, std::chrono::microseconds max_delay, uint64_t seed)
      : inner_(make_host_device(1)), delayed_lanes_(std::move(delayed_lanes)), max_delay_(max_delay), seed_(seed) {}

  DeviceKind kind() const override { return inner_->kind(); }
  std::string describe() const override { return inner_->describe() + ", delayed"; }
  Buffer allocate(int64_t size_bytes, Category category, std::string_view owner) override {
    return inner_->allocate(size_bytes, category, owner);
  }
  Buffer allocate_host(int64_t size_bytes, std::string_view owner) override {
    return inner_->allocate_host(size_bytes, owner);
  }
  std::unique_ptr<Event> make_event() override { return inner_->make_event(); }
  const Kernels& kernels() const override { return inner_->kernels(); }
  std::unique_ptr<Stream> make_stream(Lane lane) override {
    auto stream = inner_->make_stream(lane);
    for (const Lane delayed : delayed_lanes_) {
      if (delayed == lane)
        return std::make_unique<DelayingStream>(std::move(stream), max_delay_, seed_ + 977 * ++streams_);
    }
    return stream;
  }

 private:
  std::unique_ptr<Device> inner_;
  std::vector<Lane> delayed_lanes_;
  std::chrono::microseconds max_delay_;
  uint64_t seed_, streams_ = 0;
};

}  // namespace aliquot::test
