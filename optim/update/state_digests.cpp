#include "optim/update/state_digests.h"

#include <algorithm>

#include "kernels/elementwise/block_digest.h"
#include "kernels/elementwise/host_loops.h"

namespace aliquot {
namespace {

constexpr int64_t kBlocksAtOnce = 16;
using Digests = std::array<uint64_t, kBlocksAtOnce>;

/// The blocks [first, first + count) of one segment. The last one may have fewer than kBlockElements elements.
struct BlockRange {
  int64_t first, count, element_count;
};

/// One array of the state: its first block of a range, and the bytes of a whole block.
struct StateArray {
  const std::byte* data;
  int64_t block_bytes;
};

const std::byte* bytes_at(const void* array, int64_t offset) {
  return array == nullptr ? nullptr : static_cast<const std::byte*>(array) + offset;
}

/// Returns false if the update has no such arrays.
bool compute(const UpdateArgs& args, StatePart part, const BlockRange& range, Digests& digests) {
  const HostLoops& loops = host_loops(best_isa());
  const auto add = [&](const StateArray& array, uint64_t* to) {
    const int64_t whole = (range.count - 1) * array.block_bytes;
    const int64_t rest = range.element_count - (range.count - 1) * kBlockElements;
    const bool is_scale = array.block_bytes < kBlockElements;  // one value for each block
    const int64_t last = is_scale ? array.block_bytes : rest * array.block_bytes / kBlockElements;
    loops.block_digests(to, array.data, array.block_bytes, whole + last);
  };
  const int64_t begin = range.first * kBlockElements;
  if (part != StatePart::kOptimizer) {
    const StateArrays arrays = state_arrays(args.master);
    const bool of_master = part == StatePart::kMaster;
    const int64_t element = of_master ? arrays.master_bytes : arrays.parameter_bytes;
    const StateArray array = {bytes_at(of_master ? arrays.master : arrays.parameters, begin * element),
                              kBlockElements * element};
    if (array.data != nullptr) add(array, digests.data());
    return array.data != nullptr;
  }
  digests = {};
  bool any = false;
  for (int s = 0; s < kMaxStates; ++s) {
    if (args.states[s] == nullptr) continue;
    Digests of_state;
    const StateArray array = {bytes_at(args.states[s], state_offset_bytes(args.moments, s, begin)),
                              state_offset_bytes(args.moments, s, kBlockElements)};
    add(array, of_state.data());
    for (int64_t b = 0; b < range.count; ++b) digests[b] = digests[b] * kDigestChainFactor + of_state[b];
    any = true;
  }
  return any;
}

/// Calls body(part, range, digests) for all parts with digests, in order of blocks.
template <typename Body>
void for_digests(const UpdateArgs& args, int64_t begin, int64_t end, const Body& body) {
  const Segment* const last = args.segments + args.segment_count;
  const Segment* segment =
      std::partition_point(args.segments, last, [begin](const Segment& s) { return s.offset + s.count <= begin; });
  for (; segment != last && segment->offset < end; ++segment) {
    const int64_t to = std::min(end, segment->offset + segment->count);
    for (int64_t from = std::max(begin, segment->offset); from < to; from += kBlocksAtOnce * kBlockElements) {
      const int64_t elements = std::min(to - from, kBlocksAtOnce * kBlockElements);
      const BlockRange range = {from / kBlockElements, (elements + kBlockElements - 1) / kBlockElements, elements};
      for (int p = 0; p < kStatePartCount; ++p) {
        Digests digests;
        if (args.check->digests[p] == nullptr || !compute(args, static_cast<StatePart>(p), range, digests)) continue;
        body(static_cast<StatePart>(p), range, digests);
      }
    }
  }
}

}  // namespace

StateArrays state_arrays(const Master& master) {
  const void* copy = master.high != nullptr ? master.high : master.copy;
  if (copy == nullptr) return {.parameters = master.whole, .parameter_bytes = 4};
  if (master.low != nullptr) return {.parameters = copy, .master = master.low, .parameter_bytes = 2, .master_bytes = 2};
  return {.parameters = copy, .master = master.whole, .parameter_bytes = 2, .master_bytes = 4};
}

void record_digests(const UpdateArgs& args, int64_t begin, int64_t end) {
  for_digests(args, begin, end, [&](StatePart part, const BlockRange& range, const Digests& digests) {
    std::copy_n(digests.begin(), range.count, args.check->digests[static_cast<std::size_t>(part)] + range.first);
  });
}

std::optional<StateDifference> find_difference(const UpdateArgs& args, int64_t begin, int64_t end) {
  std::optional<StateDifference> found;
  for_digests(args, begin, end, [&](StatePart part, const BlockRange& range, const Digests& digests) {
    const uint64_t* recorded = args.check->digests[static_cast<std::size_t>(part)] + range.first;
    for (int64_t b = 0; b < range.count; ++b) {
      if (digests[b] == recorded[b]) continue;
      if (!found || range.first + b < found->block) found = {part, range.first + b};
      return;
    }
  });
  return found;
}

}  // namespace aliquot
