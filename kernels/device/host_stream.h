#pragma once
// What a stream of a host device can do besides: wait for gates.

#include "kernels/device/gate.h"
#include "kernels/device/stream.h"
#include "kernels/system/thread_pool.h"

namespace aliquot {

/// A stream whose work is host code. The loops' host table and the communicators are written against this alone, so
/// they run unchanged on a worker, on the caller's own thread and under the adversary.
class HostStream : public Stream {
 public:
  HostStream(Lane lane, ThreadPool& pool) : Stream(lane), pool_(pool) {}

  /// Work enqueued after this starts only when the gate is open.
  virtual void wait_for(Gate gate) = 0;

  /// The threads that loops on this stream share.
  ThreadPool& pool() { return pool_; }

 private:
  ThreadPool& pool_;
};

/// The stream as a host stream. Throws std::logic_error for a stream of another device: a bug, not a user's error.
HostStream& as_host_stream(Stream& stream);

}  // namespace aliquot
