#pragma once
// One ncclComm_t, wrapped once.

#include <memory>
#include <nccl.h>
#include <string>
#include <string_view>

#include "kernels/device/device_cuda.h"
#include "sharding/nccl/communicator_nccl.h"
#include "sharding/nccl/peers_nccl.h"

namespace aliquot {

/// A non-blocking communicator of NCCL. Every result passes through await_result(), which waits with a deadline; when something
/// fails, NCCL's work is taken off the GPU, the other ranks are told, and CommunicationError is thrown. Used by the rank's
/// own thread alone.
class NcclHandle {
 public:
  /// Collective over the peers, whose first rank makes the id. `device` must outlive it.
  NcclHandle(CudaDevice& device, std::shared_ptr<NcclPeers> peers, const NcclOptions& options);
  /// The ranks of `parent` that name one color, in the order of `peers`, the group's own. Collective over the parent.
  NcclHandle(NcclHandle& parent, std::shared_ptr<NcclPeers> peers, int color);
  ~NcclHandle() { close(); }
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  /// The end. Aborts what was aborted, and while an exception unwinds; otherwise lets all ranks finish, and says goodbye.
  void close() noexcept;

  ncclComm_t get() const { return comm_; }
  bool broken() const { return comm_ == nullptr; }
  CudaDevice& device() const { return device_; }
  NcclPeers& peers() const { return *peers_; }
  const NcclOptions& options() const { return options_; }

  /// Returns when NCCL has taken the call in hand. `place` says where this rank is, for the message.
  void await_result(ncclResult_t result, std::string_view place);
  /// Throws if NCCL, or another rank, has reported a failure since. Never blocks.
  void throw_if_failed(std::string_view place);
  /// Takes NCCL off the GPU, tells the other ranks `why` and throws it.
  [[noreturn]] void fail(const std::string& why);

 private:
  ncclResult_t async_state() const;
  void abort() noexcept;
  bool finalize() noexcept;

  CudaDevice& device_;
  std::shared_ptr<NcclPeers> peers_;
  NcclOptions options_;
  ncclComm_t comm_ = nullptr;
  int unwinding_count_;
};

/// Sends and receives between construction and end() start together.
class NcclGroup {
 public:
  explicit NcclGroup(NcclHandle& handle);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  void add(ncclResult_t result);
  void end(std::string_view place);

 private:
  NcclHandle& handle_;
  ncclResult_t first_failure_ = ncclSuccess;
  bool open_ = true;
};

}  // namespace aliquot
