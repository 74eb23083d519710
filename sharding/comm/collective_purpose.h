#pragma once
// The purpose of a rendezvous, for messages and flight records.

#include <string>
#include <string_view>
#include <vector>

#include "sharding/comm/communicator.h"

namespace aliquot {

/// While the object exists, it sets the purpose of every rendezvous of this thread. Messages and flight records name
/// the purpose `what`, which is a verb such as "save". If objects are nested, the innermost one applies. Without an
/// object, the purpose is "set up". `what` must outlive the object. The same thread must construct and destroy the
/// object.
class ScopedCollectivePurpose {
 public:
  explicit ScopedCollectivePurpose(std::string_view what, int64_t step = -1) noexcept;
  ~ScopedCollectivePurpose();
  ScopedCollectivePurpose(const ScopedCollectivePurpose&) = delete;
  ScopedCollectivePurpose& operator=(const ScopedCollectivePurpose&) = delete;

 private:
  Label before_;
};

/// Returns the purpose that is set for the calling thread.
Label collective_purpose() noexcept;

/// Returns "for the other ranks to save together" if `what` is "save".
std::string bootstrap_wait_text(std::string_view what);
/// Returns the message of a timeout: "rank 0 waited 600 s for the other ranks to save together (step 20); rank 1 never
/// arrived". `rank` and `missing` are global ranks.
std::string bootstrap_timeout_text(int rank, double timeout_seconds, const std::vector<int>& missing);

}  // namespace aliquot
