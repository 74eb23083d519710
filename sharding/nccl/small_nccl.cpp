#include "sharding/nccl/small_nccl.h"

#include <algorithm>

#include "sharding/comm/reduction.h"

namespace aliquot {
namespace {

constexpr int64_t kPlace = Communicator::kSmallCount;
constexpr auto kBytes = static_cast<int64_t>(sizeof(double));

std::size_t bytes_of(int64_t count) { return static_cast<std::size_t>(count * kBytes); }

}  // namespace

SmallNumbers::SmallNumbers(NcclHandle& handle)
    : handle_(handle),
      pinned_(kLaneCount * (1 + handle.peers().rank_count()) * kPlace * kBytes, "small numbers"),
      gpu_(handle.device(), kLaneCount * handle.peers().rank_count() * kPlace * kBytes, "small numbers") {}

double* SmallNumbers::pinned(Lane lane) const {
  return reinterpret_cast<double*>(pinned_.data()) +
         static_cast<int64_t>(lane) * (1 + handle_.peers().rank_count()) * kPlace;
}

double* SmallNumbers::on_gpu(Lane lane) const {
  return reinterpret_cast<double*>(gpu_.data()) + static_cast<int64_t>(lane) * handle_.peers().rank_count() * kPlace;
}

void SmallNumbers::all_reduce(Stream& stream, std::span<double> values, Reduction reduction, const Errand& errand) {
  if (values.empty()) return barrier(stream, errand);
  const auto count = static_cast<int64_t>(values.size());
  const int rank = handle_.peers().rank(), rank_count = handle_.peers().rank_count();
  double* own = pinned(stream.lane());
  double* all = own + kPlace;
  double* gpu = on_gpu(stream.lane());
  const cudaStream_t cuda = cuda_stream(stream);
  stream.run([values, own] { std::copy(values.begin(), values.end(), own); });
  check(cudaMemcpyAsync(gpu + rank * count, own, bytes_of(count), cudaMemcpyHostToDevice, cuda),
        "sending small numbers");
  gather(stream, count, errand);
  check(cudaMemcpyAsync(all, gpu, bytes_of(count * rank_count), cudaMemcpyDeviceToHost, cuda),
        "receiving small numbers");
  stream.run([values, all, rank_count, reduction] {
    reduce_in_tree(values, rank_count, reduction,
                   [&](int r) { return all + static_cast<std::size_t>(r) * values.size(); });
  });
}

void SmallNumbers::barrier(Stream& stream, const Errand& errand) { gather(stream, 1, errand); }

void SmallNumbers::gather(Stream& stream, int64_t count, const Errand& errand) {
  double* gpu = on_gpu(stream.lane());
  handle_.settle(ncclAllGather(gpu + handle_.peers().rank() * count, gpu, static_cast<std::size_t>(count), ncclFloat64,
                               handle_.get(), cuda_stream(stream)),
                 errand.text());
}

}  // namespace aliquot
