#include "sharding/abort_bridge_mpi.h"

#include <chrono>

namespace aliquot {

AbortBridge::AbortBridge(std::shared_ptr<AbortChannel> aborts, std::vector<Board> boards)
    : aborts_(std::move(aborts)), boards_(std::move(boards)), thread_([this] { watch(); }) {}

AbortBridge::~AbortBridge() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  leave_.notify_one();
  thread_.join();
  carry();  // what was said since the last look must still reach the other nodes
}

void AbortBridge::abort(std::string_view why) noexcept {
  for (const Board& board : boards_) board.abort(why);
  aborts_->post(why);
}

void AbortBridge::watch() {
  constexpr std::chrono::milliseconds kPeriod{20};
  std::unique_lock lock(mutex_);
  while (!leave_.wait_for(lock, kPeriod, [this] { return leaving_; })) {
    if (carry()) return;
  }
}

bool AbortBridge::carry() {
  std::string why;
  bool found = aborts_->posted(&why);
  for (const Board& board : boards_) {
    if (found || !board.notice().posted()) continue;
    found = true;
    why = board.notice().why();
  }
  if (found) abort(why);
  return found;
}

}  // namespace aliquot
