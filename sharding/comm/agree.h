#pragma once
// Setting up together: all ranks succeed, or all fail for the same reason.

#include <exception>
#include <fmt/format.h>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/system/error.h"
#include "sharding/comm/communicator.h"
#include "sharding/comm/exchange.h"

namespace aliquot {

/// Runs `attempt` on every rank and returns what each one's gave, in rank order. If it threw an Error on any rank, all
/// ranks throw UnavailableError with the first one's sentence. Collective and blocking.
template <typename Attempt>
std::vector<std::string> agree(Exchange& exchange, Attempt attempt) {
  constexpr char kDone = '+', kFailed = '!';
  std::string own;
  try {
    own = kDone + attempt();
  } catch (const Error& error) {
    own = kFailed + std::string(error.what());
  }
  auto all = exchange.all(own);
  for (int r = 0; r < exchange.rank_count(); ++r) {
    if (all[r].front() == kFailed)
      throw UnavailableError(fmt::format("rank {}: {}", exchange.name_of(r), all[r].substr(1)));
    all[r].erase(0, 1);
  }
  return all;
}

/// Throws CommunicationError, naming two ranks, unless what all ranks said begins with the same number of bytes.
inline void expect_same_sizes(const Exchange& exchange, const std::vector<std::string>& said, std::string_view owner) {
  for (int r = 1; r < exchange.rank_count(); ++r) {
    if (std::stoll(said[r]) == std::stoll(said[0])) continue;
    throw CommunicationError(fmt::format("ranks disagree about the size of {}: {} bytes on rank {}, {} on rank {}",
                                         owner, std::stoll(said[0]), exchange.name_of(0), std::stoll(said[r]),
                                         exchange.name_of(r)));
  }
}

}  // namespace aliquot
