#pragma once
// The one thing a new world needs before it has shared memory: telling each other small things.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace aliquot {

/// Blocking bootstrap of small byte strings between the ranks of a group, for set-up only. Everything else (boards, shared
/// memory, NCCL's id) is built on it. All calls are collective; used from each rank's own thread.
class Bootstrap {
 public:
  Bootstrap() = default;
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;
  virtual ~Bootstrap() = default;

  virtual int rank() const = 0;
  virtual int rank_count() const = 0;

  /// Every rank's string, in rank order. Throws CommunicationError, naming the missing ranks, at the deadline, and with
  /// the reason given when a rank has called abort().
  virtual std::vector<std::string> all_gather(std::string_view own) = 0;

  /// Every rank's object, where ranks are threads of one process: each lives as long as any rank holds it. Else throws
  /// std::logic_error.
  virtual std::vector<std::shared_ptr<void>> all_gather_objects(std::shared_ptr<void> own);

  /// The rank's function has returned, as far as can be told: nothing more comes from it. From any thread.
  virtual bool has_returned(int /*rank*/) const { return false; }

  /// Where it can be told that the rank waits in all_gather() for this one: what for (ScopedBootstrapPurpose); else empty. From any thread.
  virtual std::string awaited_by(int /*rank*/) const { return {}; }

  /// What a rank is called in messages: its number in the world that this group was split from.
  virtual int global_rank(int rank) const { return rank; }

  /// Ranks of one color, ordered by key, then rank. An abort of this bootstrap is one of the group's too, not the reverse.
  virtual std::unique_ptr<Bootstrap> split(int color, int key) = 0;

  /// Makes every rank leave all_gather(), now and later. From any thread.
  virtual void abort(std::string_view why) noexcept = 0;
  /// True, with the reason, once any rank of this bootstrap, or of one that it was split from, has called abort(). From
  /// any thread.
  virtual bool aborted(std::string* why) const = 0;
};

/// Bootstrap::global_rank() of every rank.
std::vector<int> global_ranks_of(const Bootstrap& bootstrap);

}  // namespace aliquot
