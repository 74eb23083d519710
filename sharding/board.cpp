#include "sharding/board.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>

#include "sharding/signals.h"

namespace aliquot {

void SharedText::write(std::string_view text) {
  for (std::size_t i = 0; i < kWordCount; ++i) {
    uint64_t word = 0;
    const std::size_t begin = std::min(i * sizeof(word), text.size());
    const std::size_t length = std::min(sizeof(word), text.size() - begin);
    if (length > 0) std::memcpy(&word, text.data() + begin, length);  // an empty label has no address
    words_[i].store(word, std::memory_order_relaxed);
  }
}

std::string SharedText::read() const {
  std::array<char, kWordCount * sizeof(uint64_t) + 1> text{};
  for (std::size_t i = 0; i < kWordCount; ++i) {
    const uint64_t word = words_[i].load(std::memory_order_relaxed);
    std::memcpy(text.data() + i * sizeof(word), &word, sizeof(word));
  }
  return {text.data()};
}

void AbortNotice::post(std::string_view why) noexcept {
  uint32_t expected = kNone;
  if (!state.compare_exchange_strong(expected, kBeingWritten)) return;
  const std::size_t length = std::min(why.size(), kReasonBytes - 1);
  std::memcpy(reason.data(), why.data(), length);
  reason[length] = '\0';
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
  if (sequence == 0) return "none";
  const auto what = OperationDescription::unpack(lane.descriptions[sequence % LaneBoard::kDescriptionDepth].load());
  return fmt::format("{} #{}{}", what.text(), sequence,
                     label_text(lane.what.read(), lane.step.load(std::memory_order_relaxed)));
}

}  // namespace aliquot
