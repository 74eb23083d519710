#include "sharding/mpi/abort_bridge_mpi.h"

#include <algorithm>
#include <chrono>

namespace aliquot {

AbortBridge::AbortBridge(AbortChannel& aborts, Channels heard, std::vector<Board> boards)
    : aborts_(aborts), heard_(std::move(heard)), boards_(std::move(boards)), thread_([this] { watch(); }) {}

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
  aborts_.post(why);
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
  bool found = std::any_of(heard_.begin(), heard_.end(), [&why](const auto& one) { return one->posted(&why); });
  for (const Board& board : boards_) {
    if (found || !board.notice().posted()) continue;
    found = true;
    why = board.notice().why();
  }
  if (found) abort(why);
  return found;
}

}  // namespace aliquot
