#pragma once
// Staging memory of a reduce-scatter between host nodes, or over NCCL.

#include <compare>
#include <cstdint>

#include "kernels/device/device.h"
#include "kernels/formats/dtype.h"
#include "sharding/topology.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// The places of a slot of staging memory. A place has room for one fp32 piece of a part.
struct StagingPlaces {
  int64_t count = 0;
  int64_t max_nccl_bytes = 0;  // Topology::nccl_staging_bytes, or 0 if the ranks do not use NCCL

  friend auto operator<=>(const StagingPlaces&, const StagingPlaces&) = default;
};

/// The size of the staging memory. A part is sent in pieces, which are ranges of its elements. Between host nodes, the
/// memory has two slots if there are several pieces. One piece is added in one slot while the next piece is received in
/// the other slot. Over NCCL, it has one slot, because the transfers and sums of a lane follow one another, and its
/// maximum size is Topology::nccl_staging_bytes. A slot has room for the data of several ranks. The size depends only
/// on the topology and the length of a part, so that all ranks agree and a plan can include it.
struct ReduceStaging {
  /// Maximum size of a rank's staging memory between host nodes, for parts of any length. A piece has at least one
  /// block. If slots for pieces of one block are larger than this maximum, or than that for NCCL, a rank needs more.
  static constexpr int64_t kMaxBytes = int64_t{16} << 20;
  /// Over NCCL, one kernel adds the data of at most this many ranks. With more ranks, kernels first add groups of this
  /// size. It is a power of two, so that groups are subtrees of the summation tree.
  static constexpr int64_t kMaxNcclSources = 256;

  int64_t piece_elements = 0;  // elements of a piece, a multiple of the block size
  int64_t place_count = 0;     // number of fp32 pieces in a slot
  int64_t slot_count = 0;      // number of slots: 2 for double buffering, otherwise 1

  int64_t slot_bytes() const;
  int64_t size_bytes() const { return slot_count * slot_bytes(); }
};

/// Returns whether the ranks of `topology` need staging memory to add data of type `from` to sums of type `to`. NCCL
/// needs none if both types are fp32 and it may choose the order of additions.
bool sum_needs_staging(const Topology& topology, bool in_tree_order, DType from, DType to);
/// Returns the places of a slot on the rank that needs most. There are none on a single host, on GPUs without NCCL, and
/// for a single rank. `alone`: for ReduceScatter::alone. Takes time linear in the number of ranks.
StagingPlaces reduce_staging_places(const Topology& topology, bool alone = false);
/// Returns the sizes of the staging buffers for parts of `part_count` elements. All are 0 if `places.count` is 0.
ReduceStaging reduce_staging(StagingPlaces places, int64_t part_count);
inline ReduceStaging reduce_staging(const Topology& topology, int64_t part_count, bool alone = false) {
  return reduce_staging(reduce_staging_places(topology, alone), part_count);
}

/// Allocates staging for tests and benchmarks. Returns an empty buffer if no staging is necessary. After an error,
/// messages may still arrive in the buffer, so the process must end before the buffer is freed. Throws UnavailableError
/// if there is not enough memory.
Buffer allocate_reduce_staging(Device& device, const Topology& topology, int64_t part_count, bool alone = false);

}  // namespace aliquot
#pragma GCC visibility pop
