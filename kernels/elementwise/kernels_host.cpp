#include "kernels/elementwise/kernels_host.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "kernels/device/host_stream.h"
#include "kernels/elementwise/block_digest.h"
#include "kernels/elementwise/encoding_host.h"
#include "kernels/elementwise/host_loops.h"
#include "kernels/elementwise/leaf_tree.h"

namespace aliquot {
namespace {

const HostLoops& loops() {
  static const HostLoops& best = host_loops(best_isa());
  return best;
}

// The thread pool runs loops of up to 16 grains on one thread. 16 grains of this size are 256 KiB of fp32, which one
// thread processes in less time than waking another thread takes.
constexpr int64_t kGrainElements = 16 * kBlockElements;

/// Enqueues body(begin, end) for ranges that cover [0, count) and begin at multiples of kGrainElements.
template <typename Body>
void run(Stream& stream, int64_t count, Body body) {
  if (count == 0) return;
  HostStream& lane = as_host_stream(stream);
  lane.run([&pool = lane.pool(), count, body] { pool.for_ranges(count, kGrainElements, body); });
}

void* at(void* base, DType dtype, int64_t element) {
  return static_cast<std::byte*>(base) + element * element_bytes(dtype);
}
const void* at(const void* base, DType dtype, int64_t element) {
  return static_cast<const std::byte*>(base) + element * element_bytes(dtype);
}

void copy(Stream& stream, void* to, const void* from, int64_t size_bytes) {
  run(stream, size_bytes, [=](int64_t begin, int64_t end) {
    loops().copy(at(to, DType::kUInt8, begin), at(from, DType::kUInt8, begin), end - begin);
  });
}

void fill(Stream& stream, void* to, DType dtype, float value, int64_t count) {
  run(stream, count,
      [=](int64_t begin, int64_t end) { loops().fill(at(to, dtype, begin), dtype, value, end - begin); });
}

void scale(Stream& stream, float* x, float factor, int64_t count) {
  run(stream, count, [=](int64_t begin, int64_t end) { loops().scale(x + begin, factor, end - begin); });
}

void add(Stream& stream, float* to, const float* from, int64_t count) {
  run(stream, count, [=](int64_t begin, int64_t end) { loops().add(to + begin, from + begin, end - begin); });
}

void axpy(Stream& stream, float* y, float a, const float* x, int64_t count) {
  run(stream, count, [=](int64_t begin, int64_t end) { loops().axpy(y + begin, a, x + begin, end - begin); });
}

void cast(Stream& stream, void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count) {
  run(stream, count, [=](int64_t begin, int64_t end) {
    loops().cast(at(to, to_dtype, begin), to_dtype, at(from, from_dtype, begin), from_dtype, end - begin);
  });
}

void split(Stream& stream, uint16_t* high, int16_t* low, const float* master, int64_t count) {
  run(stream, count, [=](int64_t begin, int64_t end) {
    loops().split(high + begin, low == nullptr ? nullptr : low + begin, master + begin, end - begin);
  });
}

void merge(Stream& stream, float* master, const uint16_t* high, const int16_t* low, int64_t count) {
  run(stream, count,
      [=](int64_t begin, int64_t end) { loops().merge(master + begin, high + begin, low + begin, end - begin); });
}

void sum_tree(Stream& stream, const TreeSum& sum) {
  run(stream, sum.count, [sum](int64_t begin, int64_t end) { loops().sum_tree(sum, begin, end); });
}

void block_squares(Stream& stream, double* sums, const float* x, int64_t count) {
  run(stream, count, [=](int64_t begin, int64_t end) {
    loops().block_squares(sums + begin / kBlockElements, x + begin, end - begin);
  });
}

void block_largest(Stream& stream, double* values, const void* x, DType dtype, int64_t count) {
  run(stream, count, [=](int64_t begin, int64_t end) {
    loops().block_largest(values + begin / kBlockElements, at(x, dtype, begin), dtype, end - begin);
  });
}

void block_fixed_squares(Stream& stream, double* sums, const FixedSquares& args) {
  run(stream, args.count, [=](int64_t begin, int64_t end) {
    FixedSquares part = args;
    part.x = at(args.x, args.dtype, begin);
    part.count = end - begin;
    loops().block_fixed_squares(sums + begin / kBlockElements, part);
  });
}

void sum_runs(Stream& stream, const RunSums& what) {
  if (what.run_count == 0) return;
  HostStream& lane = as_host_stream(stream);
  lane.run([&pool = lane.pool(), what] {
    pool.for_ranges(what.run_count, 1, [&what](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const LeafRun& run = what.runs[r];
        what.values[run.sum] = leaf_tree_sum(what.values + run.first, run.count);
      }
    });
  });
}

/// Threads search separate ranges. An atomic minimum keeps the smallest index.
void find_nonfinite(Stream& stream, int64_t* first, const void* x, DType dtype, int64_t count) {
  as_host_stream(stream).run([first, count] { *first = count; });
  run(stream, count, [=](int64_t begin, int64_t end) {
    const int64_t found = loops().find_nonfinite(at(x, dtype, begin), dtype, end - begin);
    if (found == end - begin) return;
    std::atomic_ref<int64_t> least(*first);
    for (int64_t seen = least.load(); begin + found < seen && !least.compare_exchange_weak(seen, begin + found);) {
    }
  });
}

void encode(Stream& stream, const Encode& args) {
  run(stream, args.part_count * args.count, [args](int64_t begin, int64_t end) { encode_blocks(args, begin, end); });
}

void decode(Stream& stream, const Decode& args) {
  run(stream, args.part_count * args.count, [args](int64_t begin, int64_t end) { decode_blocks(args, begin, end); });
}

constexpr int64_t kDigestsAtOnce = 16;
using DigestRun = std::array<uint64_t, kDigestsAtOnce>;

/// Calls body(first block, digests, count) for runs of blocks, in order.
template <typename Body>
void for_digest_runs(const BlockDigests& what, int64_t begin_block, int64_t end_block, const Body& body) {
  const auto* data = static_cast<const std::byte*>(what.data);
  for (int64_t block = begin_block; block < end_block; block += kDigestsAtOnce) {
    const int64_t end = std::min(end_block, block + kDigestsAtOnce), at = block * what.block_bytes;
    DigestRun digests;
    loops().block_digests(digests.data(), data + at, what.block_bytes,
                          std::min(end * what.block_bytes, what.size_bytes) - at);
    body(block, digests, end - block);
  }
}

int64_t block_count(const BlockDigests& what) { return (what.size_bytes + what.block_bytes - 1) / what.block_bytes; }

void block_digests(Stream& stream, const BlockDigests& what) {
  if (what.size_bytes == 0) return;
  HostStream& lane = as_host_stream(stream);
  lane.run([&pool = lane.pool(), what] {
    pool.for_ranges(block_count(what), kDigestsAtOnce, [&what](int64_t begin, int64_t end) {
      for_digest_runs(what, begin, end, [&what](int64_t first, const DigestRun& digests, int64_t count) {
        uint64_t* const to = what.digests + first;
        for (int64_t b = 0; b < count; ++b) {
          const uint64_t digest = digests[static_cast<std::size_t>(b)];
          to[b] = what.chains ? to[b] * kDigestChainFactor + digest : digest;
        }
      });
    });
  });
}

void digest_sum(Stream& stream, uint64_t* sum, const void* data, int64_t size_bytes) {
  const BlockDigests what{.data = data, .block_bytes = kMaxDigestBlockBytes, .size_bytes = size_bytes};
  as_host_stream(stream).run([sum, what] {
    *sum = 0;
    for_digest_runs(what, 0, block_count(what), [sum](int64_t, const DigestRun& digests, int64_t count) {
      for (int64_t b = 0; b < count; ++b) *sum = *sum * kDigestChainFactor + digests[static_cast<std::size_t>(b)];
    });
  });
}

}  // namespace

const Kernels& host_kernels() {
  static const Kernels kernels = {.copy = copy,
                                  .fill = fill,
                                  .scale = scale,
                                  .add = add,
                                  .axpy = axpy,
                                  .cast = cast,
                                  .split = split,
                                  .merge = merge,
                                  .sum_tree = sum_tree,
                                  .block_squares = block_squares,
                                  .block_largest = block_largest,
                                  .block_fixed_squares = block_fixed_squares,
                                  .sum_runs = sum_runs,
                                  .find_nonfinite = find_nonfinite,
                                  .encode = encode,
                                  .decode = decode,
                                  .block_digests = block_digests,
                                  .digest_sum = digest_sum};
  return kernels;
}

}  // namespace aliquot
