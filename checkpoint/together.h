#pragma once
// Ranks that do something together and all learn whether it worked.

#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sharding/comm/communicator.h"

namespace aliquot {

/// Runs `step` on this rank and hands its result to all ranks, in rank order. If it threw on any, the same Error is
/// thrown on every rank, naming the ranks that failed unless all failed alike; its exit code is the first failing
/// rank's. A CommunicationError is passed on at once.
std::vector<std::string> together(Communicator& communicator, const std::function<std::string()>& step);

/// The same for a step with no result.
void all_or_none(Communicator& communicator, const std::function<void()>& step);

/// What rank 0's `step` returns, on every rank.
std::string from_rank_0(Communicator& communicator, const std::function<std::string()>& step);

/// Values as bytes, to be handed to other ranks of the same program, and back.
template <typename T>
std::string to_bytes(std::span<const T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::string(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}
template <typename T>
std::vector<T> from_bytes(std::string_view bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

}  // namespace aliquot
