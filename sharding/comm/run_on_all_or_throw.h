#pragma once
// Steps that all ranks of a group complete, or that all of them fail with the same error.
//
// The rule for errors: if the step throws on any rank, every rank throws an Error of the same kind and with the same
// sentence. The kind, and with it the exit code, is that of the first rank that failed. An exception that is no Error
// becomes a FaultError. The sentence is "rank R: SENTENCE" for each rank that failed, at most eight, joined by "; ". If
// all ranks failed alike it is their sentence alone. What a smaller group has already agreed on by this rule is named
// once and as it is. A CommunicationError is passed on at once: the ranks cannot agree any more.
//
// All calls are collective and block; each rank makes them from its own thread.

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

/// The ranks that take part: those of a communicator or of a bootstrap, which must outlive it.
class StepGroup {
 public:
  StepGroup(Communicator& ranks) : communicator_(&ranks) {}  // NOLINT(google-explicit-constructor)
  StepGroup(Bootstrap& ranks) : bootstrap_(&ranks) {}        // NOLINT(google-explicit-constructor)

  int rank() const { return bootstrap_ != nullptr ? bootstrap_->rank() : communicator_->rank(); }
  /// The number of a rank in messages.
  int global_rank(int rank) const { return bootstrap_ != nullptr ? bootstrap_->global_rank(rank) : rank; }
  /// Every rank's string, in rank order.
  std::vector<std::string> gather(std::string_view own) const {
    return bootstrap_ != nullptr ? bootstrap_->all_gather(own) : communicator_->gather_objects(own);
  }

 private:
  Communicator* communicator_ = nullptr;
  Bootstrap* bootstrap_ = nullptr;
};

/// Runs `step` on this rank and returns every rank's result, in rank order.
std::vector<std::string> gather_or_throw(const StepGroup& ranks, const std::function<std::string()>& step);

/// The same for a step with no result.
void run_on_all_or_throw(const StepGroup& ranks, const std::function<void()>& step);

/// What rank 0's `step` returns, on every rank. Other ranks do not run it.
std::string broadcast_from_rank_0(const StepGroup& ranks, const std::function<std::string()>& step);

/// Throws CommunicationError, naming two ranks, unless all of `gathered` begin with the same number of bytes.
void expect_same_sizes(const StepGroup& ranks, const std::vector<std::string>& gathered, std::string_view owner);

/// Values as bytes, for other ranks of the same program, and back.
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
