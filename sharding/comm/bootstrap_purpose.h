#pragma once
// The purpose of a rendezvous, for messages and flight records.

#include <string>
#include <string_view>
#include <vector>

#include "sharding/comm/communicator.h"

namespace aliquot {

/// While this object exists, messages and records about rendezvous of its thread name the purpose `what`, a verb such
/// as "save". The innermost object counts; the default purpose is "set up". `what` must outlive the object. The same
/// thread must construct and destroy it.
class ScopedBootstrapPurpose {
 public:
  explicit ScopedBootstrapPurpose(std::string_view what, int64_t step = -1) noexcept;
  ~ScopedBootstrapPurpose();
  ScopedBootstrapPurpose(const ScopedBootstrapPurpose&) = delete;
  ScopedBootstrapPurpose& operator=(const ScopedBootstrapPurpose&) = delete;

 private:
  Label before_;
};

/// The purpose that is set for the calling thread.
Label bootstrap_purpose() noexcept;

/// "for the other ranks to save together", for `what` = "save".
std::string bootstrap_wait_text(std::string_view what);
/// Message of a timeout: "rank 0 waited 600 s for the other ranks to save together (step 20); rank 1 never arrived".
/// `rank` and `missing` are global ranks.
std::string bootstrap_timeout_text(int rank, double timeout_seconds, const std::vector<int>& missing);

}  // namespace aliquot
