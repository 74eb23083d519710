#pragma once
// A host device on which work of some lanes begins late, on real threads: what overtakes what is another from run to run.

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

/// Before about every second piece of work, a sleep of up to `most`.
class DelayingStream final : public HostStream {
 public:
  DelayingStream(std::unique_ptr<Stream> inner, std::chrono::microseconds most, uint64_t seed)
      : HostStream(inner->lane(), as_host_stream(*inner).pool()),
        inner_(std::move(inner)),
        most_(most),
        random_(seed) {}

  void record(Event& event) override { inner_->record(event); }
  void wait(const Event& event) override { inner_->wait(event); }
  void wait_for(Gate gate) override { as_host_stream(*inner_).wait_for(std::move(gate)); }
  void synchronize() override { inner_->synchronize(); }
  void run(Task work) override {
    const uint64_t drawn = random_();
    if (drawn % 2 == 0) {
      const auto delay = most_ * static_cast<int64_t>(drawn / 2 % 1024) / 1024;
      inner_->run([delay] { std::this_thread::sleep_for(delay); });
    }
    inner_->run(std::move(work));
  }

 private:
  std::unique_ptr<Stream> inner_;
  std::chrono::microseconds most_;
  std::mt19937_64 random_;  // of the rank's own thread, which enqueues
};

/// Memory and loops are a host device's, whose ledger counts them: this one's stays empty.
class DelayingDevice final : public Device {
 public:
  DelayingDevice(std::vector<Lane> late, std::chrono::microseconds most, uint64_t seed)
      : inner_(make_host_device(1)), late_(std::move(late)), most_(most), seed_(seed) {}

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
    for (const Lane late : late_) {
      if (late == lane) return std::make_unique<DelayingStream>(std::move(stream), most_, seed_ + 977 * ++streams_);
    }
    return stream;
  }

 private:
  std::unique_ptr<Device> inner_;
  std::vector<Lane> late_;
  std::chrono::microseconds most_;
  uint64_t seed_, streams_ = 0;
};

}  // namespace aliquot::test
