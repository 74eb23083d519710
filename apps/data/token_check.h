#pragma once
// Checks every token of a source against the vocabulary before training starts.

#include <cstdint>
#include <functional>

#include "apps/data/token_source.h"
#include "kernels/system/thread_pool.h"

namespace aliquot {

/// Which of `part_count` equal parts of a source to check; ranks of a node take one part each.
struct TokenPartition {
  int part = 0, part_count = 1;
};

/// Checks every token of that part on all threads of the pool, while `progress` returns true. Calls it with the share done, from
/// the calling thread. Throws UsageError, naming position and value, for the first token outside [0, vocabulary).
void check_tokens(const TokenSource& source, int64_t vocabulary, TokenPartition part, ThreadPool& pool,
                  const std::function<bool(double)>& progress = {});

}  // namespace aliquot
