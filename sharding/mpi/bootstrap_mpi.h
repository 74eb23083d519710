#pragma once
// The bootstrap for ranks connected by MPI.

#include <memory>
#include <vector>

#include "sharding/comm/bootstrap.h"
#include "sharding/mpi/abort_channel_mpi.h"
#include "sharding/mpi/handles_mpi.h"

namespace aliquot {

/// Rank 0 of the group collects and distributes all strings. It also tells the other ranks which ranks are missing, and
/// compares the purposes of the calls. All strings of one all_gather() together must be smaller than 1 GiB.
class MpiBootstrap final : public Bootstrap {
 public:
  /// Duplicates `parent`. Collective; blocks without a timeout until all ranks have called it.
  MpiBootstrap(MPI_Comm parent, double timeout_seconds);

  int rank() const override { return rank_; }
  int rank_count() const override { return rank_count_; }
  int global_rank(int rank) const override { return global_ranks_[rank]; }
  std::vector<std::string> all_gather(std::string_view own) override;
  std::unique_ptr<Bootstrap> split(int color, int key) override;
  void abort(std::string_view why) noexcept override { aborts().post(why); }
  bool aborted(std::string* why) const override;

  /// Returns a bootstrap for the ranks that can share memory with this rank, in the same order. Collective.
  std::unique_ptr<MpiBootstrap> split_by_node();
  std::unique_ptr<MpiBootstrap> split_mpi(int color, int key);

  MPI_Comm comm() const { return comm_.get(); }
  double timeout_seconds() const { return timeout_seconds_; }

  /// The abort channels of this bootstrap, of the bootstrap from which it was split, and so on, in this order.
  const std::vector<std::shared_ptr<AbortChannel>>& channels() const { return channels_; }
  AbortChannel& aborts() const { return *channels_.front(); }

 private:
  class Wait;
  /// Creates the bootstrap of `group`, a group of ranks of `parent`. `parent` is used only during the call.
  MpiBootstrap(const MpiBootstrap& parent, const MpiComm& group);
  std::unique_ptr<MpiBootstrap> make_group(const MpiComm& group) const;

  void check_size_limit(std::size_t size_bytes);
  bool try_receive(const MpiEnvelope& from, Wait& wait, std::string* bytes, int* source);
  void check_same_purpose(int source, const std::string& frames);
  std::string gather_at_root(std::string own_frames);
  std::string send_to_root_and_receive(std::string frames);

  MpiComm comm_;
  std::vector<std::shared_ptr<AbortChannel>> channels_;
  double timeout_seconds_;
  int rank_, rank_count_;
  std::vector<int> global_ranks_;
};

}  // namespace aliquot
