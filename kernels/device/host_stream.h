#pragma once
// The streams of host devices. In addition to events, they can wait for gates.

#include "kernels/device/gate.h"
#include "kernels/device/stream.h"
#include "kernels/system/thread_pool.h"

namespace aliquot {

/// A stream whose work is host code. The host kernels and communicators use only this interface. So they run unchanged
/// on a worker thread, on the calling thread, and on the device that reorders work in tests.
class HostStream : public Stream {
 public:
  HostStream(Lane lane, ThreadPool& pool) : Stream(lane), pool_(pool) {}

  /// Work enqueued after this call starts only when the gate is open.
  virtual void wait_for(Gate gate) = 0;

  /// The threads that run the loops of this stream. Streams of a rank share them.
  ThreadPool& pool() { return pool_; }

 private:
  ThreadPool& pool_;
};

/// Casts `stream`. Throws std::logic_error for a stream of a GPU, which is a bug in the caller.
HostStream& as_host_stream(Stream& stream);

}  // namespace aliquot
