#pragma once
// Checks all tokens of a source against the vocabulary before training starts.

#include <cstdint>
#include <functional>

#include "apps/data/token_source.h"
#include "kernels/system/thread_pool.h"

namespace aliquot {

/// One of `part_count` equal parts of a source. Each rank of a node checks one part.
struct TokenPartition {
  int part = 0, part_count = 1;
};

/// Checks all tokens of `part` on all threads of the pool. Calls `progress` on the calling thread with the fraction
/// done, and stops when `progress` returns false. Throws UsageError, with position and value, for the first token
/// outside [0, vocabulary).
void check_tokens(const TokenSource& source, int64_t vocabulary, TokenPartition part, ThreadPool& pool,
                  const std::function<bool(double)>& progress = {});

}  // namespace aliquot
