#include "sharding/comm/collective_purpose.h"

#include <algorithm>
#include <fmt/format.h>

#include "sharding/comm/operation_description.h"

namespace aliquot {
namespace {

constexpr std::string_view kDefault = "set up";
thread_local Label purpose{kDefault};

}  // namespace

ScopedCollectivePurpose::ScopedCollectivePurpose(Label label) noexcept : before_(purpose) { purpose = label; }

ScopedCollectivePurpose::~ScopedCollectivePurpose() { purpose = before_; }

Label collective_purpose() noexcept { return purpose; }

Label collective_purpose_or(std::string_view what) noexcept { return purpose.what == kDefault ? Label{what} : purpose; }

std::string different_purposes_text(int rank, std::string_view purpose, int other, std::string_view other_purpose) {
  return fmt::format(
      "rank {} is at a rendezvous to {}, but rank {} is at a rendezvous to {}: all ranks must make the same calls "
      "in the same order",
      rank, purpose, other, other_purpose);
}

std::string bootstrap_wait_text(std::string_view what) {
  return fmt::format("for the other ranks to {} together", what);
}

std::string bootstrap_timeout_text(int rank, double timeout_seconds, const std::vector<MissingRank>& missing) {
  std::string text = fmt::format("rank {} waited {:g} s {}{}", rank, timeout_seconds, bootstrap_wait_text(purpose.what),
                                 label_text("", purpose.step));
  const std::size_t named = std::min(missing.size(), kMaxNamedMissingRanks);
  for (std::size_t i = 0; i < named; ++i) {
    const MissingRank& each = missing[i];
    text += fmt::format("; rank {} never arrived{}{}", each.rank,
                        each.last_operation.empty() ? "" : ", its last operation was ", each.last_operation);
  }
  if (named < missing.size()) text += fmt::format("; and {} more ranks", missing.size() - named);
  return text;
}

}  // namespace aliquot
