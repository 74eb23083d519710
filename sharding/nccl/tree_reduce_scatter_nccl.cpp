#include "sharding/nccl/tree_reduce_scatter_nccl.h"

#include <algorithm>
#include <fmt/format.h>

#include "kernels/elementwise/kernels.h"
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

void TreeReduceScatter::reduce_scatter(Stream& stream, const ReduceScatter& what, const CollectiveCall& call) {
  allocate_scratch();
  stream.wait(last_use_);
  const int64_t from_bytes = element_bytes(what.from_dtype), to_bytes = element_bytes(what.to_dtype);
  const int64_t piece_count = stride_bytes_ / from_bytes;  // elements of a stride, a whole number of blocks
  std::byte* from = what.from.buffer->local() + what.from.offset_bytes;
  for (int64_t done = 0; done < what.part_count; done += piece_count) {
    const int64_t count = std::min(piece_count, what.part_count - done);
    // The transfers may overwrite the scratch buffer, because the sum of the previous piece precedes them in the
    // stream.
    exchange_parts(handle_, cuda_stream(stream), {from + done * from_bytes, what.part_count * from_bytes, what.shift},
                   {scratch_.data(), stride_bytes_}, count * from_bytes, call);
    sum_in_groups(
        handle_.device().kernels(), stream,
        {.bases = received_parts_,
         .from_dtype = what.from_dtype,
         .to = static_cast<std::byte*>(what.to) + done * to_bytes,
         .to_dtype = what.to_dtype,
         .count = count,
         .factor = what.factor,
         .block_squares = what.block_squares == nullptr ? nullptr : what.block_squares + done / kBlockElements},
        kMaxSources, partial_sums_);
  }
  stream.record(last_use_);
}

void TreeReduceScatter::allocate_scratch() {
  if (!received_parts_.empty()) return;
  const int rank_count = handle_.peers().rank_count();
  const int max_sources = static_cast<int>(kMaxSources);
  const int group_count = rank_count <= max_sources ? 0 : (rank_count + max_sources - 1) / max_sources;
  constexpr int64_t kBlockBytes = kBlockElements * static_cast<int64_t>(sizeof(float));
  stride_bytes_ = std::max(handle_.options().scratch_bytes / rank_count / kBlockBytes, int64_t{1}) * kBlockBytes;
  // If the stride contains 16-bit elements, their fp32 sums need twice as many bytes.
  const int64_t partial_bytes = 2 * stride_bytes_;
  scratch_ = handle_.device().allocate(stride_bytes_ * rank_count + partial_bytes * group_count,
                                       Category::kCommunication, "reduce-scatter scratch");
  for (int r = 0; r < rank_count; ++r) received_parts_.push_back(scratch_.data() + r * stride_bytes_);
  for (int g = 0; g < group_count; ++g) {
    partial_sums_.push_back(scratch_.data() + stride_bytes_ * rank_count + g * partial_bytes);
  }
}

}  // namespace aliquot
