#pragma once
// The memory that a reduce-scatter between nodes of hosts needs beside its operands.

#include <cstdint>

#include "kernels/device/device.h"
#include "sharding/topology.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Parts travel in pieces: one piece is added while the next is on its way. Depends on the topology and on the length of a part
/// alone, so that all ranks cut alike and a plan knows the bytes.
struct ReduceStaging {
  /// What a rank stages at most, whatever the length of a part, unless two blocks a place are more.
  static constexpr int64_t kMostBytes = int64_t{16} << 20;

  int64_t piece_elements = 0;  // of a part, in whole blocks
  int64_t place_count = 0;     // fp32 pieces that a slot holds
  int64_t slot_count = 0;      // 2, or 1 where a piece is a whole part

  int64_t slot_bytes() const;
  int64_t size_bytes() const { return slot_count * slot_bytes(); }
};

/// fp32 pieces that a slot holds on ranks that lie as `topology` says; 0 on one node and on GPUs. Looks at every rank.
int64_t reduce_staging_places(const Topology& topology);
/// For parts of `part_count` elements; empty without places.
ReduceStaging reduce_staging(int64_t place_count, int64_t part_count);
inline ReduceStaging reduce_staging(const Topology& topology, int64_t part_count) {
  return reduce_staging(reduce_staging_places(topology), part_count);
}

/// Staging for tests and benchmarks, which end with the first error: it may be freed while messages are still under way. Empty
/// where none is needed. Throws UnavailableError when there is not enough memory.
Buffer allocate_reduce_staging(Device& device, const Topology& topology, int64_t part_count);

}  // namespace aliquot
#pragma GCC visibility pop
