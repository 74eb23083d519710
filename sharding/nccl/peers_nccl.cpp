#include "sharding/nccl/peers_nccl.h"

#include <fmt/format.h>

namespace aliquot {

std::string Errand::text() const {
  return fmt::format("{} #{}{}", what.text(), sequence, label_text(label.what, label.step));
}

NcclPeers::NcclPeers(NcclSetup& setup) : exchange_(std::move(setup.exchange)) {
  if (!setup.make_node_memory || !setup.topology.one_node()) return;
  node_memory_ = setup.make_node_memory(*exchange_);
  if (node_memory_ == nullptr) return;  // refused, on all ranks
  side_.emplace(node_memory_->map(Board::size_bytes(rank_count()), "signals"),
                SignalsOptions{.rank = rank(),
                               .rank_count = rank_count(),
                               .timeout_seconds = setup.options.timeout_seconds,
                               .names = names_of(*exchange_),
                               .aborted_elsewhere = [this](std::string* why) { return exchange_->aborted(why); }});
}

void NcclPeers::meet(const Errand& errand) {
  if (!side_) return;
  side_->arrive(errand.lane, errand.sequence, errand.what, errand.label);
  Everybody{&*side_, errand.lane, true, 0, errand.sequence, errand.what, errand.label}.block();
}

void NcclPeers::abort(std::string_view why) noexcept {
  if (side_) side_->abort(why);
  exchange_->abort(why);
}

bool NcclPeers::aborted(std::string* why) const {
  if (side_ && side_->board().notice().posted()) {
    if (why != nullptr) *why = side_->board().notice().why();
    return true;
  }
  return exchange_->aborted(why);
}

}  // namespace aliquot
