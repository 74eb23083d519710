#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <utility>

#include "engine/plan/byte_holders.h"
#include "engine/plan/free_spans.h"
#include "engine/plan/occupied_spans.h"
#include "engine/plan/writer/writer.h"

namespace aliquot {
namespace {

/// Rounds sizes up to the alignment of buffers.
struct Alignment {
  int64_t bytes;
  int64_t operator()(int64_t size) const { return (size + bytes - 1) / bytes * bytes; }
};

/// Counts the pairs of buffers with overlapping lifetimes.
int64_t count_overlaps(const std::vector<DraftBuffer>& buffers, const std::vector<std::size_t>& in_order) {
  std::priority_queue<OperationId, std::vector<OperationId>, std::greater<>> alive;  // last operations of live buffers
  int64_t pairs = 0;
  for (const std::size_t index : in_order) {
    while (!alive.empty() && alive.top() < buffers[index].buffer.first) alive.pop();
    pairs += static_cast<int64_t>(alive.size());
    alive.push(buffers[index].buffer.last);
  }
  return pairs;
}

/// Places persistent buffers at the start of their space, one after another.
void place_persistent(ScheduleDraft& draft, Schedule& schedule, int rank_count) {
  const Alignment aligned{draft.alignment_bytes};
  for (auto& [buffer, ends] : draft.buffers) {
    if (!buffer.always) continue;
    int64_t& cursor = schedule.bytes(buffer.space);
    buffer.offset_bytes = cursor;
    // In the shared range the shards of a flat buffer are adjacent, so that together they form the full parameters.
    cursor += aligned(buffer.size_bytes * (buffer.space == Space::kSharedRange ? rank_count : 1));
  }
}

/// Returns the most bytes of buffers that exist at the same time. No placement needs fewer.
int64_t most_live_bytes(const std::vector<DraftBuffer>& buffers, const std::vector<std::size_t>& transient,
                        Alignment aligned) {
  using End = std::pair<OperationId, int64_t>;  // the last operation of a buffer, and its size
  std::priority_queue<End, std::vector<End>, std::greater<>> alive;
  int64_t live = 0, most = 0;
  for (const std::size_t index : transient) {
    const PlannedBuffer& buffer = buffers[index].buffer;
    for (; !alive.empty() && alive.top().first < buffer.first; alive.pop()) live -= alive.top().second;
    const int64_t size = aligned(buffer.size_bytes);
    alive.emplace(buffer.last, size);
    most = std::max(most, live += size);
  }
  return most;
}

/// Places buffers in the order of decreasing size, each at the lowest offset that is free during its lifetime. Returns
/// the end offset. Gives up when the end offset reaches `limit`; the placement is then incomplete.
int64_t place_largest_first(std::vector<DraftBuffer>& buffers, const std::vector<std::size_t>& transient, int64_t base,
                            int64_t limit, Alignment aligned) {
  std::vector<std::size_t> order = transient;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return buffers[a].buffer.size_bytes > buffers[b].buffer.size_bytes;
  });
  OperationId last = 0;
  for (const std::size_t index : transient) last = std::max(last, buffers[index].buffer.last);
  OccupiedSpans occupied(last + 1);
  int64_t end = base;
  for (const std::size_t index : order) {
    PlannedBuffer& buffer = buffers[index].buffer;
    const int64_t size = aligned(buffer.size_bytes);
    buffer.offset_bytes = occupied.lowest_free(buffer.first, buffer.last, base, size);
    end = std::max(end, buffer.offset_bytes + size);
    if (end >= limit) return end;
    occupied.occupy(buffer.first, buffer.last, buffer.offset_bytes, buffer.offset_bytes + size);
  }
  return end;
}

/// Places buffers in the order of first use, each at the lowest offset that is free at that time. Returns the end
/// offset. Takes less time than place_largest_first().
int64_t place_in_order(std::vector<DraftBuffer>& buffers, const std::vector<std::size_t>& transient, int64_t base,
                       Alignment aligned) {
  std::multimap<OperationId, std::size_t> ending;  // live buffers, keyed by their last operation
  FreeSpans free(base);
  int64_t end = base;
  for (const std::size_t index : transient) {
    PlannedBuffer& buffer = buffers[index].buffer;
    while (!ending.empty() && ending.begin()->first < buffer.first) {
      const PlannedBuffer& gone = buffers[ending.begin()->second].buffer;
      free.release(gone.offset_bytes, gone.offset_bytes + aligned(gone.size_bytes));
      ending.erase(ending.begin());
    }
    const int64_t size = aligned(buffer.size_bytes);
    buffer.offset_bytes = free.allocate(size);
    if (size > 0) ending.emplace(buffer.last, index);
    end = std::max(end, buffer.offset_bytes + size);
  }
  return end;
}

/// Makes the first operation of each buffer wait for the ends of the buffers that held its bytes before. Traverses the
/// buffers twice, so that the second traversal also finds earlier holders in the previous step.
void wait_for_earlier_holders(const std::vector<DraftBuffer>& buffers, const std::vector<std::size_t>& transient,
                              std::vector<Operation>& operations) {
  ByteHolders holders;
  for (const bool second_walk : {false, true}) {
    for (const std::size_t index : transient) {
      const PlannedBuffer& buffer = buffers[index].buffer;
      if (buffer.size_bytes == 0) continue;
      const auto holder = static_cast<int32_t>(index);
      holders.assign(buffer.offset_bytes, buffer.offset_bytes + buffer.size_bytes, holder, [&](int32_t earlier) {
        if (!second_walk) return;
        const bool of_previous_step = buffers[earlier].buffer.first >= buffer.first;
        for (Wait wait : buffers[earlier].ends) {
          wait.of_previous_step = of_previous_step;
          operations[buffer.first].after.push_back(wait);
        }
      });
    }
  }
}

}  // namespace

namespace {

/// Returns the indices of the buffers of `space` that are not persistent, in the order of first use.
std::vector<std::size_t> transient_in(const std::vector<DraftBuffer>& buffers, Space space) {
  std::vector<std::size_t> transient;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (!buffers[i].buffer.always && buffers[i].buffer.space == space) transient.push_back(i);
  }
  std::stable_sort(transient.begin(), transient.end(),
                   [&](std::size_t a, std::size_t b) { return buffers[a].buffer.first < buffers[b].buffer.first; });
  return transient;
}

/// Places transient buffers after the persistent ones, and returns the end offset. Always tries place_in_order(), and
/// also place_largest_first() if it may need less memory and few lifetimes overlap. Keeps the smaller placement.
int64_t place_transient(ScheduleDraft& draft, const std::vector<std::size_t>& transient, int64_t base) {
  constexpr int64_t kMaxOverlaps = 4'000'000;  // limits the time of planning
  const Alignment aligned{draft.alignment_bytes};
  const int64_t end = place_in_order(draft.buffers, transient, base, aligned);
  if (end == base + most_live_bytes(draft.buffers, transient, aligned)) return end;
  if (count_overlaps(draft.buffers, transient) > kMaxOverlaps) return end;
  std::vector<DraftBuffer> other = draft.buffers;
  const int64_t other_end = place_largest_first(other, transient, base, end, aligned);
  if (other_end >= end) return end;
  draft.buffers = std::move(other);
  return other_end;
}

}  // namespace

void place(ScheduleDraft draft, Schedule& schedule, int rank_count) {
  place_persistent(draft, schedule, rank_count);
  for (int i = 0; i < kSpaceCount; ++i) {
    const auto space = static_cast<Space>(i);
    const auto transient = transient_in(draft.buffers, space);
    if (transient.empty()) continue;
    schedule.bytes(space) = place_transient(draft, transient, schedule.bytes(space));
    wait_for_earlier_holders(draft.buffers, transient, draft.operations);
  }
  schedule.operations = std::move(draft.operations);
  for (auto& use : draft.buffers) schedule.buffers.push_back(use.buffer);
}

}  // namespace aliquot
