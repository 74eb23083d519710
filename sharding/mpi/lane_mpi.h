#pragma once
// What one lane of a rank says and hears between nodes.

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sharding/comm/signals.h"
#include "sharding/mpi/abort_channel_mpi.h"
#include "sharding/mpi/handles_mpi.h"
#include "sharding/mpi/node_routes.h"

namespace aliquot {

/// One collective of one lane, as it is named in messages.
struct Collective {
  Lane lane = Lane::kCompute;
  uint64_t sequence = 0;  // from 1, per lane
  OperationDescription what;
  Label label;
};

/// A communicator of its own for each lane, so that lanes never wait for one another, and the polling that makes waits
/// end: at the deadline, when somebody aborts, when the stream is being destroyed. Made collectively by the rank's
/// thread, then used from the lane's worker alone. What it throws, CommunicationError, all ranks have been told.
class MpiLane {
 public:
  struct Options {
    MPI_Comm world = MPI_COMM_NULL;
    AbortChannel* aborts = nullptr;
    std::function<void(std::string_view)> abort;
    double timeout_seconds = 600;
    std::vector<int> global_ranks;  // what the ranks are called in messages
  };
  MpiLane(Options options, const NodeRoutes& routes);

  /// Returns when the ranks of other nodes that this one serves have come to the same collective. With what the node's
  /// ranks tell each other afterwards, all have. No byte of the collective has been moved.
  void match_other_nodes(const Collective& collective);

  /// Where a message of the collectives' bytes goes to or comes from.
  MpiEnvelope envelope_for(int rank) const { return {comm_.get(), rank, kDataTag}; }

  /// Returns when all of `messages` are done.
  void wait_for(MpiRequests& messages, const Collective& collective);

  /// As much as can be done now, without waiting.
  void progress(MpiRequests& messages) { (void)done(messages); }

  /// Whether a message of match_other_nodes() is under way: then MPI may still read and write what is in here.
  bool busy() const { return !headers_.empty(); }

 private:
  static constexpr int kHeaderTag = 1, kDataTag = 2;
  struct Header {
    uint64_t sequence = 0, packed = 0, fingerprint = 0;
    int64_t step = -1;
    std::array<char, 40> what{};  // the label, cut off
  };

  bool done(MpiRequests& messages) const;
  template <typename Describe>
  void poll(MpiRequests& messages, const Collective& collective, Describe describe);
  int global_rank(int rank) const { return options_.global_ranks[rank]; }
  std::string missing_ranks_text(const std::vector<int>& ranks) const;
  void check_same_operation(const Collective& collective) const;
  [[noreturn]] void fail(const std::string& why) const;

  Options options_;
  const NodeRoutes& routes_;
  MpiComm comm_;
  Header own_header_;
  std::vector<Header> received_headers_, previous_headers_;  // from each of routes_.served_ranks
  MpiRequests headers_;                                      // gone before what they read and write
};

}  // namespace aliquot
