#include "sharding/nccl/handle_nccl.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <fmt/format.h>

#include "kernels/device/poll_until.h"
#include "kernels/system/log_message.h"
#include "sharding/comm/abort_reason.h"
#include "sharding/comm/run_on_all_or_throw.h"

namespace aliquot {
namespace {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - started_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point started_ = Clock::now();
};

std::string nccl_error_message(int rank, std::string_view place, ncclResult_t result, ncclComm_t comm) {
  const char* more = ncclGetLastError(comm);
  return fmt::format("rank {} in {}: NCCL failed with {}{}{}", rank, place, ncclGetErrorString(result),
                     more != nullptr && *more != '\0' ? ": " : "", more != nullptr ? more : "");
}

ncclUniqueId agree_on_id(Bootstrap& bootstrap) {
  const std::string bytes = broadcast_from_rank_0(bootstrap, [] {
    ncclUniqueId id;
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) throw UnavailableError(nccl_error_message(0, "ncclGetUniqueId()", result, nullptr));
    return std::string(id.internal, sizeof(id.internal));
  });
  ncclUniqueId id;
  std::memcpy(id.internal, bytes.data(), sizeof(id.internal));
  return id;
}

ncclConfig_t configuration(const NcclOptions& options) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (options.channels > 0) config.minCTAs = config.maxCTAs = options.channels;
  if (options.copy_engines) config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
  return config;
}

}  // namespace

NcclHandle::NcclHandle(CudaDevice& device, std::shared_ptr<NcclPeers> peers, const NcclOptions& options,
                       double timeout_seconds)
    : device_(device),
      peers_(std::move(peers)),
      options_(options),
      timeout_seconds_(timeout_seconds),
      unwinding_count_(std::uncaught_exceptions()) {
  const ncclUniqueId id = agree_on_id(peers_->bootstrap());
  ncclConfig_t config = configuration(options);
  device.make_current();
  const int64_t free_before = device.memory().free_bytes;
  const ncclResult_t result = ncclCommInitRankConfig(&comm_, peers_->rank_count(), id, peers_->rank(), &config);
  await_result(result, "ncclCommInitRankConfig()");
  device.add_nccl_bytes(free_before - device.memory().free_bytes);
  device.add_communicator(*this);
}

NcclHandle::NcclHandle(NcclHandle& parent, std::shared_ptr<NcclPeers> peers, int color)
    : device_(parent.device_),
      peers_(std::move(peers)),
      options_(parent.options_),
      timeout_seconds_(parent.timeout_seconds_),
      unwinding_count_(std::uncaught_exceptions()) {
  ncclConfig_t config = configuration(options_);
  const int64_t free_before = device_.memory().free_bytes;
  const ncclResult_t result = ncclCommSplit(parent.comm_, color, peers_->rank(), &comm_, &config);
  parent.await_result(result, "ncclCommSplit()");
  await_result(async_state(), "ncclCommSplit()");
  device_.add_nccl_bytes(free_before - device_.memory().free_bytes);
  device_.add_communicator(*this);
}

NcclHandle::~NcclHandle() {
  close();
  device_.remove_communicator(*this);
}

bool NcclHandle::close(bool aborts) noexcept {
  if (broken()) return false;
  const bool must_abort = aborts || std::uncaught_exceptions() > unwinding_count_ || peers_->aborted(nullptr);
  if (must_abort || !finalize()) {
    abort();
    return false;
  }
  const ncclResult_t result = ncclCommDestroy(comm_);
  comm_ = nullptr;
  if (result != ncclSuccess) log_message("ncclCommDestroy() failed: {}", std::string_view(ncclGetErrorString(result)));
  return true;
}

/// Waits until the other ranks have also finished. Has a timeout, because a rank may have died. Returns whether it
/// succeeded.
bool NcclHandle::finalize() noexcept {
  const Stopwatch waited;
  bool abandoned = false;
  ncclResult_t result = ncclCommFinalize(comm_);
  poll_until(
      [&] { return abandoned || (result = result == ncclInProgress ? async_state() : result) != ncclInProgress; },
      [&] { abandoned = waited.seconds() > timeout_seconds_ || peers_->aborted(nullptr); });
  return result == ncclSuccess;
}

ncclResult_t NcclHandle::async_state() const {
  if (comm_ == nullptr) return ncclInternalError;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
  return result == ncclSuccess ? state : result;
}

void NcclHandle::await_result(ncclResult_t result, std::string_view place) {
  if (result == ncclInProgress) {
    const Stopwatch waited;
    poll_until([&] { return (result = async_state()) != ncclInProgress; },
               [&] {
                 std::string why;
                 if (peers_->aborted(&why)) fail(why);
                 if (waited.seconds() < timeout_seconds_) return;
                 fail(
                     fmt::format("rank {} waited {:g} s in {}: another rank has not made this call or cannot be "
                                 "reached, and NCCL does not report which rank",
                                 peers_->global_rank(), timeout_seconds_, place));
               });
  }
  if (result != ncclSuccess) fail(nccl_error_message(peers_->global_rank(), place, result, comm_));
}

void NcclHandle::throw_if_failed(std::string_view place) {
  if (broken())
    throw CommunicationError(
        fmt::format("rank {} in {}: an earlier collective of its group failed", peers_->global_rank(), place));
  std::string why;
  if (peers_->aborted(&why)) fail(why);
  const ncclResult_t result = async_state();
  if (result != ncclSuccess && result != ncclInProgress)
    fail(nccl_error_message(peers_->global_rank(), place, result, comm_));
}

void NcclHandle::fail(const std::string& why) {
  peers_->abort(why);
  if (device_.has_graphs()) device_.abort_work();
  abort();  // if it is not registered with the device yet
  throw_abort(why);
}

/// ncclCommAbort() does not return while a graph contains collectives of this communicator.
void NcclHandle::abort() noexcept {
  if (comm_ == nullptr) return;
  log_cuda_error(cudaSetDevice(device_.ordinal()), "selecting a GPU");
  const ncclResult_t result = ncclCommAbort(comm_);
  comm_ = nullptr;
  if (result != ncclSuccess) log_message("ncclCommAbort() failed: {}", std::string_view(ncclGetErrorString(result)));
}

NcclGroup::NcclGroup(NcclHandle& handle) : handle_(handle) {
  handle.device().make_current();
  handle.await_result(ncclGroupStart(), "ncclGroupStart()");
}

NcclGroup::~NcclGroup() {
  if (open_) (void)ncclGroupEnd();  // an exception is active and reports its own error instead
}

void NcclGroup::add(ncclResult_t result) {
  if (result != ncclSuccess && result != ncclInProgress && first_failure_ == ncclSuccess) first_failure_ = result;
}

void NcclGroup::end(std::string_view place) {
  open_ = false;
  const ncclResult_t result = ncclGroupEnd();
  handle_.await_result(first_failure_ != ncclSuccess ? first_failure_ : result, place);
}

}  // namespace aliquot
