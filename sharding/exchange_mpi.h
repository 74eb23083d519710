#pragma once
// The exchange of ranks that MPI connects.

#include <memory>

#include "sharding/abort_channel_mpi.h"
#include "sharding/exchange.h"
#include "sharding/handles_mpi.h"

namespace aliquot {

/// Goes through the group's first rank, which therefore knows who is missing and says so to all. What all ranks say
/// together may be 1 GiB at most.
class MpiExchange final : public Exchange {
 public:
  /// Collective over `parent`, which is duplicated. Blocks until all its ranks have come.
  MpiExchange(MPI_Comm parent, double timeout_seconds);

  int rank() const override { return rank_; }
  int rank_count() const override { return rank_count_; }
  std::vector<std::string> all(std::string_view own) override;
  std::unique_ptr<Exchange> split(int color, int key) override;
  void abort(std::string_view why) noexcept override { aborts_->post(why); }
  bool aborted(std::string* why) const override { return aborts_->posted(why); }

  /// Ranks that can share memory, in the order they have here. Collective.
  std::unique_ptr<MpiExchange> split_by_node();
  std::unique_ptr<MpiExchange> split_mpi(int color, int key);

  MPI_Comm comm() const { return comm_.get(); }
  double timeout_seconds() const { return timeout_seconds_; }
  const std::shared_ptr<AbortChannel>& aborts() const { return aborts_; }

 private:
  class Wait;
  std::string collect_and_tell(const std::string& frame);
  std::string tell_and_hear(const std::string& frame);

  MpiComm comm_;
  std::shared_ptr<AbortChannel> aborts_;
  double timeout_seconds_;
  int rank_, rank_count_;
};

}  // namespace aliquot
