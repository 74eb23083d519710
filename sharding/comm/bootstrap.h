#pragma once
// The exchange of small messages between ranks during the setup of a world, before shared memory exists.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace aliquot {

/// Blocking all-gather of small byte strings between the ranks of a group. Ranks use it to set up boards, shared memory
/// and NCCL communicators. Unless stated otherwise, calls are collective and each rank calls from its own thread.
class Bootstrap {
 public:
  Bootstrap() = default;
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;
  virtual ~Bootstrap() = default;

  virtual int rank() const = 0;
  virtual int rank_count() const = 0;

  /// Returns every rank's string, in rank order. Throws CommunicationError at the deadline, naming the missing ranks,
  /// and after an abort, with its reason.
  virtual std::vector<std::string> all_gather(std::string_view own) = 0;

  /// Returns every rank's object, if the ranks are threads of one process. Otherwise throws std::logic_error.
  virtual std::vector<std::shared_ptr<void>> all_gather_objects(std::shared_ptr<void> own);
  /// Returns element `rank` of all_gather_objects(). Each rank may name another one.
  virtual std::shared_ptr<void> object_of(int rank, std::shared_ptr<void> own);

  /// Returns whether the function of `rank` has returned; false if unknown. Not collective; callable from any thread.
  virtual bool has_returned(int /*rank*/) const { return false; }

  /// If `rank` is known to wait for this rank in all_gather(), returns the purpose of that call (see
  /// ScopedCollectivePurpose). Otherwise returns "". Not collective; callable from any thread.
  virtual std::string awaited_by(int /*rank*/) const { return {}; }

  /// Sets a function that returns the last operation of a rank, or "" if it is unknown, for messages of a timeout. An
  /// empty function removes it.
  void set_last_operation(std::function<std::string(int rank)> of_rank) { last_operation_ = std::move(of_rank); }
  std::string last_operation(int rank) const { return last_operation_ ? last_operation_(rank) : std::string(); }

  /// Returns the rank's number in the world, for messages.
  virtual int global_rank(int rank) const { return rank; }

  /// Returns a bootstrap for the ranks with the same color, ordered by key, then by rank. An abort of this bootstrap
  /// also aborts the new one, but not the reverse.
  virtual std::unique_ptr<Bootstrap> split(int color, int key) = 0;

  /// Makes current and later calls of all_gather() throw on every rank. Not collective; callable from any thread.
  virtual void abort(std::string_view why) noexcept = 0;
  /// Returns whether a rank has called abort() of this bootstrap, or of a bootstrap from which it was split. If so,
  /// stores the reason in `why` unless `why` is null. Not collective; callable from any thread.
  virtual bool aborted(std::string* why) const = 0;

 private:
  std::function<std::string(int rank)> last_operation_;
};

/// Bootstrap::global_rank() of every rank, in rank order.
std::vector<int> global_ranks_of(const Bootstrap& bootstrap);

}  // namespace aliquot
