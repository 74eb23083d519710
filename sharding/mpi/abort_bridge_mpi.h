#pragma once
// Carries an abort between a node's boards and the other nodes.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "sharding/comm/board.h"
#include "sharding/mpi/abort_channel_mpi.h"

namespace aliquot {

/// A rank that waits for its node's others looks at the node's boards, one that waits for another node at messages. This
/// looks at both some fifty times a second, on a thread of its own, and tells the one what the other said. It also looks
/// at channels that it tells nothing: of set-up inside the node, and of the groups that this one was split from.
class AbortBridge {
 public:
  using Channels = std::vector<std::shared_ptr<AbortChannel>>;
  /// `aborts` is told what is heard on the boards and on `channels`, which may have it among them.
  AbortBridge(AbortChannel& aborts, Channels channels, std::vector<Board> boards);
  ~AbortBridge();
  AbortBridge(const AbortBridge&) = delete;
  AbortBridge& operator=(const AbortBridge&) = delete;

  /// Tells everybody now. From any thread.
  void abort(std::string_view why) noexcept;

 private:
  void poll_loop();
  bool forward_abort();

  AbortChannel& aborts_;
  Channels channels_;
  std::vector<Board> boards_;
  std::mutex mutex_;
  std::condition_variable stop_condition_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace aliquot
