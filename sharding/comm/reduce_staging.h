#pragma once
// Staging memory of a reduce-scatter between nodes whose ranks compute on hosts.

#include <cstdint>

#include "kernels/device/device.h"
#include "sharding/topology.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// The size of the staging memory. A part is sent in pieces, which are ranges of its elements. If there are several
/// pieces, the memory has two slots. One piece is added in one slot while the next piece is received in the other slot.
/// A slot has room for the data of several ranks. The size depends only on the topology and the length of a part, so
/// that all ranks agree and a plan can include it.
struct ReduceStaging {
  /// Maximum size of a rank's staging memory, for parts of any length. The shortest pieces have one block. A rank
  /// exceeds the maximum only if the slots for these shortest pieces already exceed it.
  static constexpr int64_t kMaxBytes = int64_t{16} << 20;

  int64_t piece_elements = 0;  // elements of a piece, a multiple of the block size
  int64_t place_count = 0;     // number of fp32 pieces in a slot
  int64_t slot_count = 0;      // number of slots: 2 if a part is sent in several pieces (double buffering), otherwise 1

  int64_t slot_bytes() const;
  int64_t size_bytes() const { return slot_count * slot_bytes(); }
};

/// Returns ReduceStaging::place_count: the largest number of fp32 pieces in a slot on any rank. Returns 0 on a single
/// node and on GPUs. `alone`: for ReduceScatter::alone. Takes time linear in the number of ranks.
int64_t reduce_staging_places(const Topology& topology, bool alone = false);
/// Returns the sizes of the staging buffers for parts of `part_count` elements. All are 0 if `place_count` is 0.
ReduceStaging reduce_staging(int64_t place_count, int64_t part_count);
inline ReduceStaging reduce_staging(const Topology& topology, int64_t part_count, bool alone = false) {
  return reduce_staging(reduce_staging_places(topology, alone), part_count);
}

/// Allocates staging for tests and benchmarks. Returns an empty buffer if no staging is necessary. After an error,
/// messages may still arrive in the buffer, so the process must end before the buffer is freed. Throws UnavailableError
/// if there is not enough memory.
Buffer allocate_reduce_staging(Device& device, const Topology& topology, int64_t part_count, bool alone = false);

}  // namespace aliquot
#pragma GCC visibility pop
