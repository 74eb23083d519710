#pragma once
// The MPI messages that one lane of a rank exchanges with other nodes.

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

/// Identifies one collective of a lane.
struct Collective {
  Lane lane = Lane::kCompute;
  uint64_t sequence = 0;  // counted from 1 in each lane
  OperationDescription what;
  Label label;
};

/// Each lane has its own MPI communicator, so that lanes never wait for each other. Waits throw CommunicationError at
/// the deadline and after an abort, and end when the stream is destroyed. If the lane detects an error itself, it
/// aborts all ranks before it throws. The constructor is collective and runs on the rank's thread. After that, only the
/// lane's worker thread uses the object.
class MpiLane {
 public:
  struct Options {
    MPI_Comm world = MPI_COMM_NULL;
    AbortChannel* aborts = nullptr;
    std::function<void(std::string_view)> abort;
    double timeout_seconds = 600;
    std::vector<int> global_ranks;  // the ranks' numbers in the world, for messages
    std::string group = {};         // name of the group, for messages; empty: the world
  };
  MpiLane(Options options, const NodeRoutes& routes);

  /// Waits until certain ranks of other nodes, with which this rank exchanges messages, have arrived at the same
  /// collective. If the ranks of the node then synchronize, all ranks of all nodes have arrived. No data of the
  /// collective is transferred before that.
  void match_other_nodes(const Collective& collective);

  /// Returns the envelope for data of a collective that is sent to or received from `rank`.
  MpiEnvelope envelope_for(int rank) const { return {comm_.get(), rank, kDataTag}; }

  /// Waits until all messages are complete.
  void wait_for(MpiRequests& messages, const Collective& collective);

  /// Makes progress without blocking.
  void progress(MpiRequests& messages) { (void)done(messages); }

  /// Returns whether a message of match_other_nodes() is in flight. If so, MPI may still access members of this object.
  bool busy() const { return !headers_.empty(); }

 private:
  static constexpr int kHeaderTag = 1, kDataTag = 2;
  struct Header {
    uint64_t sequence = 0, packed = 0, fingerprint = 0;
    int64_t step = -1;
    std::array<char, 40> what{};  // the label, truncated
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
  std::vector<Header> received_headers_, previous_headers_;  // one header for each rank in routes_.served_ranks
  MpiRequests headers_;                                      // last, so that it is destroyed before the headers
};

}  // namespace aliquot
