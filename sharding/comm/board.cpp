#include "sharding/comm/board.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fmt/format.h>
#include <thread>

#include "sharding/comm/operation_description.h"

namespace aliquot {

namespace {

// Waits until another rank has written its reason for the abort. The timeout is far longer than a write takes. If it
// expires, the writer must have died.
bool wait_until_posted(const AbortNotice& notice) {
  constexpr std::chrono::milliseconds kWriteTimeout{50};
  const auto deadline = std::chrono::steady_clock::now() + kWriteTimeout;
  while (!notice.posted() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  return notice.posted();
}

}  // namespace

void write_shared(std::span<std::atomic<uint64_t>> words, std::string_view text) noexcept {
  for (std::size_t i = 0; i < words.size(); ++i) {
    uint64_t word = 0;
    const std::size_t begin = std::min(i * sizeof(word), text.size());
    const std::size_t length = std::min(sizeof(word), text.size() - begin);
    if (length > 0) std::memcpy(&word, text.data() + begin, length);  // data() of an empty label may be null
    words[i].store(word, std::memory_order_relaxed);
  }
}

std::string read_shared(std::span<const std::atomic<uint64_t>> words) {
  std::string text(words.size() * sizeof(uint64_t), '\0');
  for (std::size_t i = 0; i < words.size(); ++i) {
    const uint64_t word = words[i].load(std::memory_order_relaxed);
    std::memcpy(text.data() + i * sizeof(word), &word, sizeof(word));
  }
  return text.substr(0, text.find('\0'));
}

void AbortNotice::post(std::string_view why) noexcept {
  uint32_t expected = kNone;
  if (!state.compare_exchange_strong(expected, kBeingWritten)) {
    if (expected == kPosted || wait_until_posted(*this)) return;
    // Another process began to write a reason, but was killed before it finished: overwrite that reason.
  }
  write_shared(reason, why);
  state.store(kPosted, std::memory_order_release);
}

void Board::abort(std::string_view why) const noexcept {
  notice().post(why);
  for (int r = 0; r < rank_count_; ++r) {
    for (auto& lane : rank(r).lanes) {
      lane.arrived.wake();
      lane.progress.wake();
    }
  }
}

std::string Board::last_operation(int rank) const {
  const RankBoard& board = this->rank(rank);
  const LaneBoard& lane = board.lanes[board.last_lane.load(std::memory_order_relaxed) % kLaneCount];
  const uint64_t sequence = lane.arrived.value();
  if (sequence == 0) return {};
  const auto what = OperationDescription::unpack(lane.descriptions[sequence % LaneBoard::kDescriptionDepth].load());
  return fmt::format("{} #{}{}", what.text(), sequence,
                     label_text(read_shared(lane.label), lane.step.load(std::memory_order_relaxed)));
}

// A rank leaves a rendezvous only after all ranks of the group have arrived at it. So if `rank` has arrived at more
// rendezvous than `awaited`, it is still in the last one.
std::string Board::rendezvous_of(int rank, int awaited) const {
  const uint64_t awaited_count = this->rank(awaited).rendezvous_count.load(std::memory_order_acquire);
  if (this->rank(rank).rendezvous_count.load(std::memory_order_acquire) <= awaited_count) return {};
  return read_shared(this->rank(rank).rendezvous_purpose);
}

}  // namespace aliquot
