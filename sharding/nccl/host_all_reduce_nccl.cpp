#include "sharding/nccl/host_all_reduce_nccl.h"

#include <algorithm>

#include "sharding/comm/reduction.h"

namespace aliquot {
namespace {

constexpr int64_t kSlotValues = Communicator::kSmallCount;
constexpr auto kValueBytes = static_cast<int64_t>(sizeof(double));

std::size_t bytes_of(int64_t count) { return static_cast<std::size_t>(count * kValueBytes); }

}  // namespace

HostAllReduce::HostAllReduce(NcclHandle& handle)
    : rank_(handle.peers().rank()),
      rank_count_(handle.peers().rank_count()),
      pinned_(&handle.device(), kLaneCount * (1 + rank_count_) * kSlotValues * kValueBytes, "all-reduce values"),
      gpu_(handle.device(), kLaneCount * rank_count_ * kSlotValues * kValueBytes, "all-reduce values") {}

double* HostAllReduce::pinned(Lane lane) const {
  return reinterpret_cast<double*>(pinned_.data()) + static_cast<int64_t>(lane) * (1 + rank_count_) * kSlotValues;
}

double* HostAllReduce::on_gpu(Lane lane) const {
  return reinterpret_cast<double*>(gpu_.data()) + static_cast<int64_t>(lane) * rank_count_ * kSlotValues;
}

void HostAllReduce::all_reduce(NcclHandle& handle, Stream& stream, std::span<double> values, Reduction reduction,
                               const CollectiveCall& call) {
  if (values.empty()) return barrier(handle, stream, call);
  const auto count = static_cast<int64_t>(values.size());
  const int rank_count = rank_count_;
  double* own = pinned(stream.lane());
  double* all = own + kSlotValues;
  double* gpu = on_gpu(stream.lane());
  const cudaStream_t cuda = cuda_stream(stream);
  stream.run([values, own] { std::copy(values.begin(), values.end(), own); });
  check(cudaMemcpyAsync(gpu + rank_ * count, own, bytes_of(count), cudaMemcpyHostToDevice, cuda),
        "copying all-reduce values to the GPU");
  gather(handle, stream, count, call);
  check(cudaMemcpyAsync(all, gpu, bytes_of(count * rank_count), cudaMemcpyDeviceToHost, cuda),
        "copying all-reduce values to the host");
  stream.run([values, all, rank_count, reduction] {
    reduce_in_tree(values, rank_count, reduction,
                   [&](int r) { return all + static_cast<std::size_t>(r) * values.size(); });
  });
}

void HostAllReduce::barrier(NcclHandle& handle, Stream& stream, const CollectiveCall& call) {
  gather(handle, stream, 1, call);
}

void HostAllReduce::gather(NcclHandle& handle, Stream& stream, int64_t count, const CollectiveCall& call) {
  double* gpu = on_gpu(stream.lane());
  handle.await_result(ncclAllGather(gpu + rank_ * count, gpu, static_cast<std::size_t>(count), ncclFloat64,
                                    handle.get(), cuda_stream(stream)),
                      call.text());
}

}  // namespace aliquot
