#pragma once
// Comparison of the gradients of micro-batch 0 with those that other ranks compute again (Policy::replay_every).

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/run/memory/host_view.h"
#include "engine/run/memory/step_memory.h"
#include "engine/run/mesh_groups.h"
#include "kernels/system/error.h"

namespace aliquot {

/// The sum of data that a pipeline stage sends for micro-batch 0. Positions are those of passes, in the order in which
/// one micro-batch runs them: forward on all virtual stages, then backward.
struct SentSum {
  int64_t position;
  uint64_t sum;
};
int64_t position_of_send(const PipelineStage& stage, const Operation& send);

/// Data coordinates form a ring. In round 1, coordinate d repeats the micro-batch 0 of coordinate d + 1, in round 2
/// that of d + 2. Ranks compare digests with the rank that has the same pipeline and tensor coordinates. Used from the
/// rank's own thread, while its streams are idle. Everything passed must outlive it.
class ReplayCheck {
 public:
  ReplayCheck(const Plan& plan, const MeshGroups& groups, const StepMemory& memory, const HostView& view);

  int own_coordinate() const { return data_of(rank_); }
  /// The data coordinate whose micro-batch this rank repeats.
  int replayed_coordinate(int round) const { return (own_coordinate() + round) % data_count_; }
  /// Whether a third rank can decide which of two ranks is wrong. Round 2 then follows a difference.
  bool has_third() const { return data_count_ > 2; }

  /// Sets the loss of micro-batch 0 that this rank computed, or computed for another rank. Compared with the gradients.
  void set_loss(bool replayed, double loss) { losses_[replayed ? 1 : 0] = loss; }
  /// Sets the sums of what this rank sent for micro-batch 0. They only locate a fault on a pipeline stage, because a
  /// model may leave bytes of activations undefined.
  void set_sent(bool replayed, std::vector<SentSum> sent) { sent_[replayed ? 1 : 0] = std::move(sent); }
  void begin_step() {
    losses_ = {};
    sent_ = {};
  }

  /// Collective over all ranks, after round 1 and the step's own micro-batches. Returns whether a difference was found,
  /// the same on all ranks. `is_valid`: whether this rank has run all model code; if it is false on a rank, nothing is
  /// compared.
  bool differs(bool is_valid);
  /// Collective, after differs() returned true: after round 2 or, without a third rank, at once. Throws ReplayError,
  /// the same on all ranks.
  [[noreturn]] void decide(bool is_valid, int64_t step);

 private:
  /// The sums of gradients and of the loss on one rank.
  struct Sums {
    uint64_t own = 0, replayed = 0;
    int64_t is_valid = 0;
  };
  /// The sums of one result. `flat`: the flat buffer whose gradients it has, or -1 for a send or the loss.
  struct Result {
    int64_t position, flat;
    uint64_t own, replayed;
  };
  /// A micro-batch of rank `owner` for which rank `other` computed other results.
  struct Difference {
    int owner, other;
    int64_t position = 0;  // the first pass whose results differ; see SentSum
    int32_t flat = -1;     // the first flat buffer that differs, in the order of digests; -1: none
    int64_t block = -1;    // the first block of the flat buffer that differs
    int32_t send = -1;     // index of the send that is the first result that differs; -1: it is a gradient or the loss
  };

  int data_of(int rank) const;
  /// The rank of a data coordinate that has the other coordinates of `rank`.
  int with_data(int rank, int data) const;
  /// The rank that repeats micro-batch 0 of `owner` in a round.
  int replayer_of(int owner, int round) const;
  std::vector<uint64_t> digests(int32_t flat, bool replayed) const;
  int64_t block_count(int32_t flat) const { return plan_.flats[flat].layout.flat_count() / kBlockElements; }
  uint64_t sum_of(int32_t flat, bool replayed) const;
  std::vector<Result> gradients_and_loss() const;
  std::vector<Result> sends() const;
  std::vector<Sums> gather_sums(bool is_valid) const;
  std::vector<std::vector<Result>> gather(const std::vector<Result>& own) const;
  bool is_involved() const;
  bool is_reliable(int owner, std::size_t send) const;
  bool may_have_sent_first(int owner, int64_t position) const;
  void locate_passes();
  Difference located(int owner, const std::vector<std::vector<Result>>& all) const;
  void locate_blocks();
  std::set<int> wrong_coordinates(const std::vector<Sums>& sums) const;
  std::optional<int> contradicted(const Difference& difference, const std::vector<Sums>& sums,
                                  const std::vector<std::vector<Result>>& sends) const;
  void vote(const std::vector<Sums>& sums, const std::vector<std::vector<Result>>& sends,
            ReplayError::Finding& finding) const;

  const Plan& plan_;
  const MeshGroups& groups_;
  const StepMemory& memory_;
  const HostView& view_;
  int rank_, data_count_;
  std::vector<int32_t> flats_;      // the flat buffers with digests on this rank, in the order of kDigestGradients
  std::vector<int64_t> positions_;  // for each of them, the pass that computes its gradients last
  std::array<double, 2> losses_{};
  std::array<std::vector<SentSum>, 2> sent_;
  // Of all ranks, after round 1.
  std::vector<Sums> sums_;
  std::vector<std::vector<Result>> sends_;
  std::vector<Difference> differences_;
  /// Ranks whose sent data differs before the first difference that counts for their data coordinate. A difference of
  /// sent data does not count if is_reliable() is false for it. These ranks may be at fault.
  std::vector<int> uncertain_;
};

}  // namespace aliquot
