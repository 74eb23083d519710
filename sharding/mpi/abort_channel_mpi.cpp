#include "sharding/mpi/abort_channel_mpi.h"

#include <algorithm>

#include "sharding/comm/abort_reason.h"
#include "sharding/comm/communicator.h"

namespace aliquot {

void AbortChannel::post(std::string_view why) noexcept {
  const std::lock_guard lock(mutex_);
  if (posted_ || receive()) return;
  why_ = why.substr(0, kReasonBytes);
  posted_ = true;
  mark_mpi_failed();
  int rank = 0, rank_count = 0;
  MPI_Comm_rank(comm_.get(), &rank);
  MPI_Comm_size(comm_.get(), &rank_count);
  // Never freed, because MPI may still send the messages after this object has been destroyed.
  const auto* reason = new std::string(why_);
  for (int to = 0; to < rank_count; ++to) {
    if (to == rank) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Isend(reason->data(), static_cast<int>(reason->size()), MPI_BYTE, to, 0, comm_.get(), &request) !=
        MPI_SUCCESS) {
      continue;
    }
    MPI_Request_free(&request);
  }
}

bool AbortChannel::posted(std::string* why) noexcept {
  const std::lock_guard lock(mutex_);
  if (!posted_ && !receive()) return false;
  if (why != nullptr) *why = why_;
  return true;
}

void AbortChannel::throw_if_posted() {
  std::string why;
  if (posted(&why)) throw_abort(why);
}

bool AbortChannel::receive() noexcept {
  int found = 0, length = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  if (MPI_Improbe(MPI_ANY_SOURCE, 0, comm_.get(), &found, &message, &status) != MPI_SUCCESS || found == 0) return false;
  MPI_Get_count(&status, MPI_BYTE, &length);
  why_.resize(static_cast<std::size_t>(std::max(length, 0)));
  MPI_Mrecv(why_.data(), length, MPI_BYTE, &message, MPI_STATUS_IGNORE);
  mark_mpi_failed();
  posted_ = true;
  return true;
}

}  // namespace aliquot
