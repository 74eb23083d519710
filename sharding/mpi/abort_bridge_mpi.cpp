#include "sharding/mpi/abort_bridge_mpi.h"

#include <algorithm>
#include <chrono>

#include "kernels/system/start_thread.h"

namespace aliquot {

AbortBridge::AbortBridge(AbortChannel& aborts, Channels channels, std::vector<Board> boards)
    : aborts_(aborts),
      channels_(std::move(channels)),
      boards_(std::move(boards)),
      thread_(start_thread("errors of other nodes", [this] { poll_loop(); })) {}

AbortBridge::~AbortBridge() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_condition_.notify_one();
  thread_.join();
  forward_abort();  // an abort after the last poll must also be forwarded
}

void AbortBridge::abort(std::string_view why) noexcept {
  for (const Board& board : boards_) board.abort(why);
  aborts_.post(why);
}

void AbortBridge::poll_loop() {
  constexpr std::chrono::milliseconds kPeriod{20};
  std::unique_lock lock(mutex_);
  while (!stop_condition_.wait_for(lock, kPeriod, [this] { return stopping_; })) {
    if (forward_abort()) return;
  }
}

bool AbortBridge::forward_abort() {
  std::string why;
  bool found = std::any_of(channels_.begin(), channels_.end(), [&why](const auto& one) { return one->posted(&why); });
  for (const Board& board : boards_) {
    if (found || !board.notice().posted()) continue;
    found = true;
    why = board.notice().why();
  }
  if (found) abort(why);
  return found;
}

}  // namespace aliquot
