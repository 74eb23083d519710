#pragma once
// Work that a GPU runs again without the calls that enqueued it.

#include <memory>

#include "kernels/device/stream.h"

namespace aliquot {

/// Work that a WorkCapture has captured: a CUDA graph. Owns no memory that the work uses. Used from the rank's own
/// thread. Must outlive the work that it has enqueued.
class WorkGraph {
 public:
  WorkGraph() = default;
  WorkGraph(const WorkGraph&) = delete;
  WorkGraph& operator=(const WorkGraph&) = delete;
  virtual ~WorkGraph() = default;

  /// Enqueues all of the work on `stream`: it begins after the earlier work of the stream, and later work of the stream
  /// begins after all of it. Within the graph, work of several captured streams runs at the same time.
  virtual void launch(Stream& stream) = 0;
};

/// While it exists, work on `origin` is captured and does not run. Another stream of the device is captured from its
/// first wait for an event of a captured stream. Before end(), `origin` must wait for all other captured streams.
///
/// The captured work is repeated with the same arguments and addresses. On a captured stream, Stream::run() and
/// Stream::synchronize() throw. A wait for an event that was recorded before the capture throws too, as does an
/// allocation of the device's memory, and the capture may then be invalid. Until the end of the capture, the thread
/// must not call Event::passed(). After the capture, an event that a captured stream has recorded must be recorded
/// again before it is used, except the events of TimeMarks. Used from the rank's own thread. Only for streams of a GPU.
class WorkCapture {
 public:
  explicit WorkCapture(Stream& origin);
  /// Discards work that was not taken by end().
  ~WorkCapture();
  WorkCapture(const WorkCapture&) = delete;
  WorkCapture& operator=(const WorkCapture&) = delete;

  /// Ends the capture and returns the work. Throws if other captured streams have work for which `origin` does not
  /// wait, and after a failure of communication.
  std::unique_ptr<WorkGraph> end();

 private:
  class Open;
  std::unique_ptr<Open> open_;  // the capture, until it ends
};

/// Whether work on the stream is being captured. False for streams of a host.
bool is_captured(Stream& stream);
/// Whether work on the stream could be captured. False for streams of a host, and for CUDA's legacy default stream.
bool can_capture(Stream& stream);

}  // namespace aliquot
