#pragma once
// Abort messages between the ranks of a group, sent with MPI.

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

#include "sharding/mpi/handles_mpi.h"

namespace aliquot {

/// An MPI communicator that is used only to send reasons for aborts. Ranks poll it while they wait for other messages.
/// The constructor is collective. post() and posted() are thread-safe.
class AbortChannel {
 public:
  explicit AbortChannel(MPI_Comm parent) : comm_(MpiComm::duplicate(parent)) {}
  AbortChannel(const AbortChannel&) = delete;
  AbortChannel& operator=(const AbortChannel&) = delete;

  /// Sends the reason `why` to every other rank without blocking. Does nothing if this rank has already posted or
  /// received a reason.
  void post(std::string_view why) noexcept;

  /// Returns whether a rank has posted a reason. If so, stores it in `why` unless `why` is null.
  bool posted(std::string* why) noexcept;

  /// Throws CommunicationError if a rank has posted a reason.
  void throw_if_posted();

 private:
  static constexpr std::size_t kReasonBytes = 1000;  // small enough for MPI to send eagerly
  bool receive() noexcept;

  MpiComm comm_;
  std::mutex mutex_;
  std::atomic<bool> posted_{false};
  std::string why_;
};

}  // namespace aliquot
