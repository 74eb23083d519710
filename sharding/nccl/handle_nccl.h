#pragma once
// RAII wrapper of an ncclComm_t.

#include <memory>
#include <nccl.h>
#include <string>
#include <string_view>

#include "kernels/device/device_cuda.h"
#include "sharding/nccl/communicator_nccl.h"
#include "sharding/nccl/peers_nccl.h"

namespace aliquot {

/// A non-blocking NCCL communicator. Pass the result of every NCCL call to await_result(), which waits with a timeout.
/// After a failure, NCCL's work on the GPU is aborted, the other ranks receive the reason, and CommunicationError is
/// thrown. Used only by the rank's own thread.
///
/// NCCL starts a thread for each call of a non-blocking communicator. A blocking one would avoid this, but its calls
/// could only be aborted from a second thread. ncclCommAbort() frees the communicator: for a non-blocking one it first
/// joins the thread of the call, while a blocked call would go on and use freed memory.
class NcclHandle final : private AbortableWork {
 public:
  /// Collective over the peers. Rank 0 creates the NCCL id. `device` must outlive this object.
  NcclHandle(CudaDevice& device, std::shared_ptr<NcclPeers> peers, const NcclOptions& options, double timeout_seconds);
  /// Splits `parent`. `peers` are the ranks with the same color, in the order of the new group. Collective over
  /// `parent`.
  NcclHandle(NcclHandle& parent, std::shared_ptr<NcclPeers> peers, int color);
  ~NcclHandle() override;
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  /// Ends NCCL's work. With `aborts`, after an abort or while an exception propagates, aborts the communicator.
  /// Otherwise waits until all ranks have finished, and destroys the communicator. Returns false if it was aborted.
  bool close(bool aborts = false) noexcept;

  ncclComm_t get() const { return comm_; }
  bool broken() const { return comm_ == nullptr; }
  CudaDevice& device() const { return device_; }
  NcclPeers& peers() const { return *peers_; }
  double timeout_seconds() const { return timeout_seconds_; }

  /// Waits until NCCL has accepted the call that returned `result`. Error messages contain `place`, which names the
  /// current operation.
  void await_result(ncclResult_t result, std::string_view place);
  /// Throws if NCCL or another rank has reported a failure. Never blocks.
  void throw_if_failed(std::string_view place);
  /// Aborts the other ranks with the reason `why`, aborts NCCL's work, and throws CommunicationError. If there are
  /// graphs, aborts the work of all communicators of the device: see CudaDevice::abort_work().
  [[noreturn]] void fail(const std::string& why);

 private:
  ncclResult_t async_state() const;
  void abort() noexcept override;
  bool finalize() noexcept;

  CudaDevice& device_;
  std::shared_ptr<NcclPeers> peers_;
  NcclOptions options_;
  double timeout_seconds_;
  ncclComm_t comm_ = nullptr;
  int unwinding_count_;
};

/// Groups NCCL calls between ncclGroupStart(), in the constructor, and ncclGroupEnd(), in end(). The calls start
/// together.
class NcclGroup {
 public:
  explicit NcclGroup(NcclHandle& handle);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  /// Records the result of a grouped call. end() reports the first failure.
  void add(ncclResult_t result);
  void end(std::string_view place);

 private:
  NcclHandle& handle_;
  ncclResult_t first_failure_ = ncclSuccess;
  bool open_ = true;
};

}  // namespace aliquot
