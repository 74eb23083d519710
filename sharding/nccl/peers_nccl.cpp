#include "sharding/nccl/peers_nccl.h"

#include <fmt/format.h>

namespace aliquot {

std::string CollectiveCall::text() const {
  return fmt::format("{} #{}{}{}", what.text(), sequence, label_text(label.what, label.step), group_text(group));
}

NcclPeers::NcclPeers(NcclSetup& setup) : bootstrap_(std::move(setup.bootstrap)) {
  if (!setup.make_node_memory || !setup.topology.one_node()) return;
  node_memory_ = setup.make_node_memory(*bootstrap_);
  if (node_memory_ == nullptr) return;  // no rank can use shared memory
  client_.emplace(node_memory_->map(Board::size_bytes(rank_count()), "signals"),
                  SignalsOptions{.rank = rank(),
                                 .rank_count = rank_count(),
                                 .timeout_seconds = setup.timeout_seconds,
                                 .global_ranks = global_ranks_of(*bootstrap_),
                                 .group = setup.group,
                                 .aborted_elsewhere = [this](std::string* why) { return bootstrap_->aborted(why); }});
}

void NcclPeers::arrive_and_wait(const CollectiveCall& call) {
  if (!client_) return;
  client_->arrive(call.lane, call.sequence, call.what, call.label);
  AllRanksArrived{&*client_, call.lane, true, 0, call.sequence, call.what, call.label}.block();
}

void NcclPeers::abort(std::string_view why) noexcept {
  if (client_) client_->abort(why);
  bootstrap_->abort(why);
}

bool NcclPeers::aborted(std::string* why) const {
  if (client_ && client_->board().notice().posted()) {
    if (why != nullptr) *why = client_->board().notice().why();
    return true;
  }
  return bootstrap_->aborted(why);
}

}  // namespace aliquot
