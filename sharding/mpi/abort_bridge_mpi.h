#pragma once
// Forwards aborts between nodes. The ranks of one node announce aborts on boards in shared memory.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "sharding/comm/board.h"
#include "sharding/mpi/abort_channel_mpi.h"

namespace aliquot {

/// Ranks that wait for ranks of their node poll the boards. Ranks that wait for other nodes poll messages. This object
/// polls boards and messages every 20 ms on its own thread, and forwards aborts in both directions. It also polls
/// channels to which it does not forward aborts: the channels of the node's bootstrap and of the groups from which this
/// group was split.
class AbortBridge {
 public:
  using Channels = std::vector<std::shared_ptr<AbortChannel>>;
  /// Starts the thread. When the thread finds an abort in one of `boards` or `channels`, it posts the abort to all
  /// `boards` and to `aborts`. `channels` may contain `aborts`.
  AbortBridge(AbortChannel& aborts, Channels channels, std::vector<Board> boards);
  ~AbortBridge();
  AbortBridge(const AbortBridge&) = delete;
  AbortBridge& operator=(const AbortBridge&) = delete;

  /// Posts an abort to the boards and to the other nodes immediately. Callable from any thread.
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
