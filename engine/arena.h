#pragma once
// The memory that a plan's buffers lie in.

#include <optional>

#include "engine/schedule.h"
#include "sharding/communicator.h"

namespace aliquot {

/// One range of each rank's own and, where gathers are views, one that all ranks share. Made collectively, large enough for
/// training and evaluation, which take turns in it; the communicator must outlive it.
class Arena {
 public:
  Arena(const Plan& training, const Plan& evaluation, Communicator& communicator);

  std::byte* own() const { return own_.local(); }
  const SymmetricBuffer& buffer() const { return own_; }
  /// Only where gathers are views.
  const SharedRange& shared() const { return *shared_; }

 private:
  SymmetricBuffer own_;
  std::optional<SharedRange> shared_;
};

}  // namespace aliquot
