#include "sharding/nccl/tree_reduce_scatter_nccl.h"

#include <algorithm>
#include <fmt/format.h>

#include "kernels/elementwise/kernels.h"
#include "kernels/elementwise/kernels_cuda.h"
#include "sharding/comm/sum_in_groups.h"

namespace aliquot {

void exchange_parts(NcclHandle& handle, cudaStream_t stream, StridedParts from, StridedParts to, int64_t size_bytes,
                    const CollectiveCall& call) {
  const auto size = static_cast<std::size_t>(size_bytes);
  NcclGroup group(handle);
  const int rank_count = handle.peers().rank_count();
  for (int r = 0; r < rank_count; ++r) {
    const int part = (r + from.shift) % rank_count;
    group.add(ncclSend(from.base + part * from.stride_bytes, size, ncclUint8, r, handle.get(), stream));
    group.add(ncclRecv(to.base + r * to.stride_bytes, size, ncclUint8, r, handle.get(), stream));
  }
  group.end(call.text());
}

void transfer_runs(NcclHandle& handle, Stream& stream, const Transfers& what, const CollectiveCall& call) {
  const int rank = handle.peers().rank();
  std::byte* to = what.to.buffer->local() + what.to.offset_bytes;
  const std::byte* from = what.from.buffer->local() + what.from.offset_bytes;
  NcclGroup group(handle);
  for (const Transfer& one : what.own) {
    const auto size = static_cast<std::size_t>(one.size_bytes);
    if (one.size_bytes == 0) continue;
    if (one.source == one.target) {
      handle.device().kernels().copy(stream, to + one.to_bytes, from + one.from_bytes, one.size_bytes);
    } else if (one.source == rank) {
      group.add(ncclSend(from + one.from_bytes, size, ncclUint8, one.target, handle.get(), cuda_stream(stream)));
    } else {
      group.add(ncclRecv(to + one.to_bytes, size, ncclUint8, one.source, handle.get(), cuda_stream(stream)));
    }
  }
  group.end(call.text());
}

namespace {

static_assert(ReduceStaging::kMaxNcclSources <= cuda::kMaxTreeSources);

/// The places of one slot of staging memory: one received piece for each rank, then one partial sum for each group.
struct TreePlaces {
  TreePlaces(const ReduceStaging& cut, std::byte* staging, int rank_count) {
    const int64_t place_bytes = cut.piece_elements * element_bytes(DType::kFloat32);
    for (int64_t place = 0; place < cut.place_count; ++place) {
      std::byte* at = staging + place * place_bytes;
      if (place < rank_count) {
        received.push_back(at);
      } else {
        partial_sums.push_back(at);
      }
    }
  }

  std::vector<const std::byte*> received;
  std::vector<std::byte*> partial_sums;
};

}  // namespace

// The lists of sources may be local variables, because sum_tree() of a GPU reads `bases` before it returns.
void reduce_scatter_in_tree(NcclHandle& handle, Stream& stream, const ReduceScatter& what, const ReduceStaging& cut,
                            const CollectiveCall& call) {
  const int rank_count = handle.peers().rank_count();
  std::byte* from = what.from.buffer->local() + what.from.offset_bytes;
  TreeSum sum{.bases = {}, .from_dtype = what.from_dtype, .to_dtype = what.to_dtype, .factor = what.factor};
  if (rank_count == 1) {
    const std::byte* own = from;
    sum.bases = {&own, 1};
    sum.to = what.to;
    sum.count = what.part_count;
    sum.block_squares = what.block_squares;
    return handle.device().kernels().sum_tree(stream, sum);
  }
  const TreePlaces places(cut, what.staging, rank_count);
  const int64_t from_bytes = element_bytes(what.from_dtype), to_bytes = element_bytes(what.to_dtype);
  const int64_t place_bytes = cut.piece_elements * element_bytes(DType::kFloat32);
  for (int64_t done = 0; done < what.part_count; done += cut.piece_elements) {
    const int64_t count = std::min(cut.piece_elements, what.part_count - done);
    // The transfers may overwrite the staging memory, because the sum of the previous piece precedes them in the
    // stream.
    exchange_parts(handle, cuda_stream(stream), {from + done * from_bytes, what.part_count * from_bytes, what.shift},
                   {what.staging, place_bytes}, count * from_bytes, call);
    sum.bases = places.received;
    sum.to = static_cast<std::byte*>(what.to) + done * to_bytes;
    sum.count = count;
    if (what.block_squares != nullptr) sum.block_squares = what.block_squares + done / kBlockElements;
    sum_in_groups(handle.device().kernels(), stream, sum, ReduceStaging::kMaxNcclSources, places.partial_sums);
  }
}

}  // namespace aliquot
