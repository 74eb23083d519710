#pragma once
// Steps that either succeed on all ranks of a group, or throw the same error on all of them.
//
// If the step throws on any rank, every rank throws an Error of the same type and with the same message:
// - The type, and thus the exit code, is that of the lowest rank that failed. An exception that is not an Error becomes
//   a FaultError.
// - The message is "rank R: MESSAGE" for each failed rank, at most eight, joined by "; ". If all ranks failed with the
//   same error, the message is that of the error, without ranks.
// - If a smaller group already agreed on an error in this way, its message appears once, unchanged.
// - A CommunicationError is rethrown immediately, because the ranks can no longer communicate.
//
// All calls are collective and block. Each rank calls from its own thread.

#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sharding/comm/bootstrap.h"
#include "sharding/comm/communicator.h"

namespace aliquot {

/// The ranks that participate: those of a communicator or of a bootstrap, which must outlive this object.
class StepGroup {
 public:
  StepGroup(Communicator& ranks) : communicator_(&ranks) {}  // NOLINT(google-explicit-constructor)
  StepGroup(Bootstrap& ranks) : bootstrap_(&ranks) {}        // NOLINT(google-explicit-constructor)

  int rank() const { return bootstrap_ != nullptr ? bootstrap_->rank() : communicator_->rank(); }
  /// Returns the number by which messages name the rank.
  int global_rank(int rank) const { return bootstrap_ != nullptr ? bootstrap_->global_rank(rank) : rank; }
  /// Returns every rank's string, in rank order.
  std::vector<std::string> gather(std::string_view own) const {
    return bootstrap_ != nullptr ? bootstrap_->all_gather(own) : communicator_->gather_objects(own);
  }

 private:
  Communicator* communicator_ = nullptr;
  Bootstrap* bootstrap_ = nullptr;
};

/// Runs `step` on this rank and returns every rank's result, in rank order.
std::vector<std::string> gather_or_throw(const StepGroup& ranks, const std::function<std::string()>& step);

/// Like gather_or_throw(), for a step without a result.
void run_on_all_or_throw(const StepGroup& ranks, const std::function<void()>& step);

/// Runs `step` on rank 0 only and returns its result on every rank.
std::string broadcast_from_rank_0(const StepGroup& ranks, const std::function<std::string()>& step);

/// Throws CommunicationError unless all strings of `gathered` begin with the same decimal number, a size in bytes.
/// `owner` names the buffer in the message.
void expect_same_sizes(const StepGroup& ranks, const std::vector<std::string>& gathered, std::string_view owner);

/// These functions convert values to bytes and back, for messages between ranks of the same program.
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
