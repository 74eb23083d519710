#include "apps/data/token_check.h"

#include <algorithm>
#include <atomic>

namespace aliquot {
namespace {

// The number of bytes that a thread checks in one iteration of check_tokens().
constexpr int64_t kRoundBytes = int64_t{8} << 20;

void atomic_min(std::atomic<int64_t>& smallest, int64_t found) {
  int64_t before = smallest.load();
  while (found < before && !smallest.compare_exchange_weak(before, found)) {
  }
}

}  // namespace

void check_tokens(const TokenSource& source, int64_t vocabulary, TokenPartition part, ThreadPool& pool,
                  const std::function<bool(double)>& progress) {
  if (source.token_bytes() == 0) return;
  const int64_t each = source.token_count() / part.part_count;
  const int64_t begin = each * part.part;
  const int64_t end = part.part + 1 == part.part_count ? source.token_count() : begin + each;
  const int64_t of_thread = kRoundBytes / source.token_bytes(), round = of_thread * pool.thread_count();
  for (int64_t at = begin; at < end; at += round) {
    const int64_t count = std::min(round, end - at);
    std::atomic<int64_t> bad = INT64_MAX;
    pool.for_ranges(count, of_thread / 64, [&](int64_t first, int64_t last) {
      if (const auto found = source.find_out_of_range(at + first, last - first, vocabulary)) atomic_min(bad, *found);
    });
    if (bad != INT64_MAX) source.refuse(bad, vocabulary);
    if (progress && !progress(static_cast<double>(at + count - begin) / static_cast<double>(end - begin))) return;
  }
}

}  // namespace aliquot
