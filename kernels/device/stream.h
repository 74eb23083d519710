#pragma once
// Streams and events, which order the work on a device.

#include <cstdint>
#include <string_view>

#include "kernels/device/task.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// The purpose of a stream. A rank has one stream for each lane. Within a lane, all ranks issue collectives in the same
/// order.
///
/// Neighboring pipeline stages exchange activations on the lanes kForward0 and kForward1, and their gradients on
/// kBackward0 and kBackward1. The boundaries between pipeline stages use the two lanes of a direction alternately. A
/// pipeline stage can therefore receive and send in one direction at the same time.
enum class Lane : uint8_t {
  kCompute,
  kGather,
  kReduce,
  kExchange,
  kIo,
  kForward0,
  kForward1,
  kBackward0,
  kBackward1,
};
inline constexpr int kLaneCount = 9;

constexpr std::string_view name(Lane lane) {
  switch (lane) {
    case Lane::kCompute: return "compute";
    case Lane::kGather: return "gather";
    case Lane::kReduce: return "reduce";
    case Lane::kExchange: return "exchange";
    case Lane::kIo: return "io";
    case Lane::kForward0: return "forward-0";
    case Lane::kForward1: return "forward-1";
    case Lane::kBackward0: return "backward-0";
    case Lane::kBackward1: return "backward-1";
  }
  return "unknown";
}

class Stream;

/// A point in the order of a stream, set by Stream::record(). It passes when all work enqueued before it has finished.
/// Recording it again moves it. An event that was never recorded has passed. Device::make_event() makes events. An
/// event may outlive the stream but not the device. Not thread-safe.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  virtual ~Event() = default;

  /// Returns whether all work before the event has finished or failed. Never blocks.
  virtual bool passed() const = 0;
};

/// An in-order queue of work on one device. All calls come from the rank's thread. Calls other than synchronize() only
/// enqueue, and block only while the queue is full. The compute lane of a host device has no thread: its work runs
/// before the call returns, and wait() blocks.
///
/// On a host, work that throws on a worker thread fails its stream. Later work of the stream is dropped and its events
/// still pass. synchronize() rethrows the exception, also on streams that wait for this one. On a GPU, host work that
/// throws fails the device: its streams drop host work that has not begun, and still run copies and kernels.
/// synchronize() of each of its streams throws the exception.
class Stream {
 public:
  explicit Stream(Lane lane) : lane_(lane) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  Lane lane() const { return lane_; }

  virtual void record(Event& event) = 0;
  /// Work enqueued after this call starts only when `event`, as last recorded, has passed.
  virtual void wait(const Event& event) = 0;
  /// Enqueues host work. On a stream of a GPU, the work must be short, must not wait for a stream or a rank, and must
  /// not call CUDA.
  virtual void run(Task work) = 0;
  /// Blocks the caller until all work has finished. Rethrows an exception of the work.
  virtual void synchronize() = 0;

 private:
  Lane lane_;
};

}  // namespace aliquot
#pragma GCC visibility pop
