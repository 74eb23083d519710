#pragma once
// What ranks tell each other small things for.

#include <string>
#include <string_view>
#include <vector>

#include "sharding/comm/communicator.h"

namespace aliquot {

/// While it lives, what the exchanges of its thread are for, in messages and records: ranks wait for one another "to save
/// together". The innermost counts, and where there is none they "set up". `what` is a verb that outlives it; made and
/// destroyed by one thread.
class ScopedBootstrapPurpose {
 public:
  explicit ScopedBootstrapPurpose(std::string_view what, int64_t step = -1) noexcept;
  ~ScopedBootstrapPurpose();
  ScopedBootstrapPurpose(const ScopedBootstrapPurpose&) = delete;
  ScopedBootstrapPurpose& operator=(const ScopedBootstrapPurpose&) = delete;

 private:
  Label before_;
};

/// Of the calling thread.
Label bootstrap_purpose() noexcept;

/// "for the other ranks to save together".
std::string bootstrap_wait_text(std::string_view what);
/// What a rank says that waited in vain: "rank 0 waited 600 s for the other ranks to save together (step 20); rank 1 never
/// arrived". Ranks as they are called in messages.
std::string bootstrap_timeout_text(int rank, double timeout_seconds, const std::vector<int>& missing);

}  // namespace aliquot
