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
    : handle_(handle),
      pinned_(&handle.device(), kLaneCount * (1 + handle.peers().rank_count()) * kSlotValues * kValueBytes,
              "all-reduce values"),
      gpu_(handle.device(), kLaneCount * handle.peers().rank_count() * kSlotValues * kValueBytes, "all-reduce values") {
}

double* HostAllReduce::pinned(Lane lane) const {
  return reinterpret_cast<double*>(pinned_.data()) +
         static_cast<int64_t>(lane) * (1 + handle_.peers().rank_count()) * kSlotValues;
}

double* HostAllReduce::on_gpu(Lane lane) const {
  return reinterpret_cast<double*>(gpu_.data()) +
         static_cast<int64_t>(lane) * handle_.peers().rank_count() * kSlotValues;
}

void HostAllReduce::all_reduce(Stream& stream, std::span<double> values, Reduction reduction,
                               const CollectiveCall& call) {
  if (values.empty()) return barrier(stream, call);
  const auto count = static_cast<int64_t>(values.size());
  const int rank = handle_.peers().rank(), rank_count = handle_.peers().rank_count();
  double* own = pinned(stream.lane());
  double* all = own + kSlotValues;
  double* gpu = on_gpu(stream.lane());
  const cudaStream_t cuda = cuda_stream(stream);
  stream.run([values, own] { std::copy(values.begin(), values.end(), own); });
  check(cudaMemcpyAsync(gpu + rank * count, own, bytes_of(count), cudaMemcpyHostToDevice, cuda),
        "copying all-reduce values to the GPU");
  gather(stream, count, call);
  check(cudaMemcpyAsync(all, gpu, bytes_of(count * rank_count), cudaMemcpyDeviceToHost, cuda),
        "copying all-reduce values to the host");
  stream.run([values, all, rank_count, reduction] {
    reduce_in_tree(values, rank_count, reduction,
                   [&](int r) { return all + static_cast<std::size_t>(r) * values.size(); });
  });
}

void HostAllReduce::barrier(Stream& stream, const CollectiveCall& call) { gather(stream, 1, call); }

void HostAllReduce::gather(Stream& stream, int64_t count, const CollectiveCall& call) {
  double* gpu = on_gpu(stream.lane());
  handle_.await_result(ncclAllGather(gpu + handle_.peers().rank() * count, gpu, static_cast<std::size_t>(count),
                                     ncclFloat64, handle_.get(), cuda_stream(stream)),
                       call.text());
}

}  // namespace aliquot
