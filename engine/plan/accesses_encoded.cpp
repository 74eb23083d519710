#include "engine/plan/accesses.h"

namespace aliquot {

/// A rank's own part is read by those at its place on other nodes; theirs are written here, and read by this node's.
void Accesses::refresh(int32_t flat) {
  add({.role = Role::kParameters, .flat = flat});
  add({.role = Role::kEncodedShards, .flat = flat, .writes = true});
  if (!several_nodes_) return;
  add({.role = Role::kEncodedShards, .flat = flat, .by_peers = true, .after_meeting = true});
  add({.role = Role::kEncodedShards, .flat = flat, .writes = true, .after_meeting = true});
}

void Accesses::gather_encoded(int32_t flat) {
  const bool meets = meets_in_node(plan_);
  add({.role = Role::kEncodedShards, .flat = flat, .by_peers = meets, .after_meeting = meets});
  if (meets) {
    add({.role = Role::kEncodedWhole, .flat = flat, .writes = true});
    add({.role = Role::kEncodedWhole, .flat = flat});
  }
  add({.role = Role::kGathered, .flat = flat, .writes = true});
}

/// Within the node first, then between nodes.
void Accesses::add_up_encoded(int32_t flat) {
  if (meets_in_node(plan_)) {
    add({.role = Role::kMet, .flat = flat, .writes = true});
    add({.role = Role::kMet, .flat = flat});
  }
  add({.role = Role::kNodeSums, .flat = flat, .writes = true});
  change(Role::kCarried, flat);
  add({.role = Role::kEncodedSums, .flat = flat, .writes = true});
  add({.role = Role::kEncodedSums, .flat = flat, .by_peers = true, .after_meeting = true});
  add({.role = Role::kEncodedReceived, .flat = flat, .writes = true});
  add({.role = Role::kEncodedReceived, .flat = flat});
  add({.role = Role::kNodeSums, .flat = flat});
}

}  // namespace aliquot
