#pragma once
// Streams and events: the order of work on a device.

#include <cstdint>
#include <string_view>

#include "kernels/device/task.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// What a stream is for. A rank has one stream a lane, and collectives keep one order a lane.
enum class Lane : uint8_t { kCompute, kGather, kReduce, kExchange, kIo };
inline constexpr int kLaneCount = 5;

constexpr std::string_view name(Lane lane) {
  switch (lane) {
    case Lane::kCompute: return "compute";
    case Lane::kGather: return "gather";
    case Lane::kReduce: return "reduce";
    case Lane::kExchange: return "exchange";
    case Lane::kIo: return "io";
  }
  return "unknown";
}

class Stream;

/// A point in a stream's order, set by Stream::record and passed when all work enqueued before it has finished. May be
/// recorded again, which moves it. Made by Device::make_event; may be used after the stream that it was recorded on is gone,
/// not after the device. One thread at a time; never recorded means passed.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  virtual ~Event() = default;

  /// True when everything before it has finished, failed work included. Never blocks.
  virtual bool passed() const = 0;
};

/// An in-order queue of work on one device. All calls come from one thread, the rank's own, and only enqueue; on a host
/// device's compute lane, which is that thread itself, work is done before the call returns and wait() blocks.
/// Work that throws on a worker poisons its stream: later work is dropped, events still pass, and the exception is thrown
/// by synchronize() and, through waits, by every stream that depended on it. On a GPU it poisons the device: host work
/// that has not begun is dropped on all its streams, copies and kernels still run, and any synchronize() throws it.
class Stream {
 public:
  explicit Stream(Lane lane) : lane_(lane) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  Lane lane() const { return lane_; }

  virtual void record(Event& event) = 0;
  /// Work enqueued after this starts only when `event`, as last recorded, has passed.
  virtual void wait(const Event& event) = 0;
  /// Host work in the stream's order. On a GPU's stream it is short, waits for no stream and no rank, and calls no CUDA.
  virtual void run(Task work) = 0;
  /// Blocks the caller until all work has finished. Throws what the work threw.
  virtual void synchronize() = 0;

 private:
  Lane lane_;
};

}  // namespace aliquot
#pragma GCC visibility pop
