#pragma once
// How one rank tells all others of a group to leave, wherever they are.

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

#include "sharding/mpi/handles_mpi.h"

namespace aliquot {

/// A communicator that carries nothing but the reason to leave. Whoever waits for messages looks here now and then.
/// Making one is collective; post() and posted() are for any thread.
class AbortChannel {
 public:
  explicit AbortChannel(MPI_Comm parent) : comm_(MpiComm::duplicate(parent)) {}
  AbortChannel(const AbortChannel&) = delete;
  AbortChannel& operator=(const AbortChannel&) = delete;

  /// Sends `why` to every other rank, without waiting. The first reason stays; later ones are dropped.
  void post(std::string_view why) noexcept;

  /// True, with the reason, once any rank has posted.
  bool posted(std::string* why) noexcept;

  /// Throws CommunicationError with the reason once any rank has posted.
  void throw_if_posted();

 private:
  static constexpr std::size_t kReasonBytes = 1000;  // small, so that it leaves at once
  bool receive() noexcept;

  MpiComm comm_;
  std::mutex mutex_;
  std::atomic<bool> posted_{false};
  std::string why_;
};

}  // namespace aliquot
