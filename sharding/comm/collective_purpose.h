#pragma once
// The purpose of a rendezvous, for messages and flight records.

#include <cstddef>
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
  explicit ScopedCollectivePurpose(std::string_view what, int64_t step = -1) noexcept
      : ScopedCollectivePurpose(Label{what, step}) {}
  explicit ScopedCollectivePurpose(Label purpose) noexcept;
  ~ScopedCollectivePurpose();
  ScopedCollectivePurpose(const ScopedCollectivePurpose&) = delete;
  ScopedCollectivePurpose& operator=(const ScopedCollectivePurpose&) = delete;

 private:
  Label before_;
};

/// Returns the purpose that is set for the calling thread.
Label collective_purpose() noexcept;
/// Returns the purpose that is set for the calling thread, or `what` if none is set.
Label collective_purpose_or(std::string_view what) noexcept;
/// Returns the message for ranks at different rendezvous: "rank 0 is at a rendezvous to save, but rank 1 is at a
/// rendezvous to load: all ranks must make the same calls in the same order". The ranks are global ranks.
std::string different_purposes_text(int rank, std::string_view purpose, int other, std::string_view other_purpose);

/// Returns "for the other ranks to save together" if `what` is "save".
std::string bootstrap_wait_text(std::string_view what);
struct MissingRank {
  int rank;
  std::string last_operation = {};  // such as "barrier #2"; empty: unknown
};

/// Messages of timeouts name at most so many ranks. Thousands of ranks may be missing.
inline constexpr std::size_t kMaxNamedMissingRanks = 8;

/// Returns the message of a timeout: "rank 0 waited 600 s for the other ranks to save together (step 20); rank 1 never
/// arrived, its last operation was barrier #2". If more ranks are missing than messages name, ends with "; and 5 more
/// ranks". The ranks are global ranks.
std::string bootstrap_timeout_text(int rank, double timeout_seconds, const std::vector<MissingRank>& missing);

}  // namespace aliquot
