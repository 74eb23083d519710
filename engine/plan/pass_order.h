#pragma once
// The order in which the ranks of a pipeline run forward and backward passes.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace aliquot {

enum class PipelineSchedule : uint8_t {
  kGpipe,        // all forward passes, then all backward passes
  k1F1B,         // each rank runs one forward pass per later rank, then alternates forward and backward
  kInterleaved,  // 1F1B with several virtual stages per rank
  kZeroBubble,   // 1F1B with backward passes in two parts (ZB-H1)
  kAuto,         // the fastest of these, by simulation; see choose_plans(). pass_order() returns the order of k1F1B
};

/// The name of the schedule in options and messages.
constexpr std::string_view name(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::kGpipe: return "gpipe";
    case PipelineSchedule::k1F1B: return "1f1b";
    case PipelineSchedule::kInterleaved: return "interleaved";
    case PipelineSchedule::kZeroBubble: return "zero-bubble";
    case PipelineSchedule::kAuto: break;
  }
  return "auto";
}

/// A backward pass is whole (kBackward), or has two parts: gradients of the input, then gradients of the weights.
enum class PassKind : uint8_t { kForward, kBackward, kBackwardInput, kBackwardWeights };

/// One pass of one micro-batch through one virtual stage. With one virtual stage per rank, the index of the virtual
/// stage is the rank.
struct PipelineAction {
  int32_t stage;
  PassKind pass;
  int32_t micro_batch;

  friend bool operator==(const PipelineAction&, const PipelineAction&) = default;
};

/// The numbers of ranks of the pipeline, of micro-batches, and of virtual stages per rank. Virtual stage s is on rank
/// s % ranks.
struct PipelineShape {
  int ranks = 1, micro_batches = 1, virtual_stages = 1;
  /// The last rank also runs virtual stage 0, because the uses of that stage share parameters with those of the last
  /// virtual stage. Rank 0 then begins with virtual stage 1.
  bool tied_ends = false;

  int stage_count() const { return ranks * virtual_stages + (tied_ends ? 1 : 0); }
  int rank_of(int stage) const { return (stage + (tied_ends ? ranks - 1 : 0)) % ranks; }
};

/// The passes of each rank of a pipeline, in the order in which the rank runs them.
using PassOrder = std::vector<std::vector<PipelineAction>>;

/// Returns the order of the schedule. Each rank runs the backward passes of a virtual stage in ascending order of
/// micro-batches. Only kInterleaved uses several virtual stages per rank.
///
/// kInterleaved runs rounds of `ranks` micro-batches. In each round, a rank runs the forward passes of its first
/// virtual stage, then those of the next one. It runs backward passes in reverse order of virtual stages. The last
/// round may be shorter. It then has the passes in the order of a full round, without the missing ones.
///
/// kZeroBubble delays the second part of each backward pass by as many micro-batches as the rank has earlier ranks. The
/// second parts fill the time in which 1F1B waits at the end of a step. A rank has at most `ranks` micro-batches for
/// which it has run the forward pass and not yet the complete backward pass.
PassOrder pass_order(PipelineSchedule schedule, int ranks, int micro_batches, int virtual_stages = 1);

/// How long the passes of a virtual stage take, in a unit of time that all virtual stages share.
struct PassTimes {
  int64_t forward = 16, backward = 32;
  int64_t backward_input = 16, backward_weights = 16;
  /// How long it takes to send the result of a forward or backward pass to another rank.
  int64_t send_activations = 0, send_gradients = 0;

  int64_t of(PassKind pass) const;
  friend bool operator==(const PassTimes&, const PassTimes&) = default;
};

/// The times of all virtual stages, in order. Empty: all virtual stages have the default times, except that a pass of
/// tied ends takes 1, because it only looks up or adds rows of a table.
using StagePassTimes = std::vector<PassTimes>;

/// Adds the passes of a virtual stage 0 on the last rank (PipelineShape::tied_ends) to an order without them, and
/// increases the numbers of the other virtual stages by 1. `times` includes virtual stage 0. If passes take these
/// times, each added forward pass ends at least the time of the longest forward pass before rank 0 needs its result,
/// and runs as late as possible. Each added backward pass runs at least that time after rank 0 produces its input, and
/// as early as possible. With `backward_last`, all added backward passes run after the other passes of the rank.
/// Gradients of shared parameters are then added in the same order for every number of ranks.
PassOrder with_tied_ends(const PassOrder& order, bool backward_last, const StagePassTimes& times = {});

/// Replaces the two parts of a backward pass on virtual stage 0 by one whole pass, if the second part directly follows
/// the first one. No other rank waits for the gradient of the input of virtual stage 0. A whole pass needs less memory
/// than its two parts. For orders without tied ends.
PassOrder with_whole_backwards(const PassOrder& order);

/// Returns text such as "2F0", which means virtual stage 2, forward, micro-batch 0. The letters are F, B, I (input) and
/// W (weights).
std::string name(const PipelineAction& action);

/// Formats the order as PyTorch's pipelining does: one line per rank, actions separated by commas.
std::string text(const PassOrder& order);

/// Parses the output of text(). Blanks and empty actions, which stand for idle time, are ignored. Throws UsageError if
/// an action is malformed. The message has the line number and the text of the first such action.
PassOrder parse_pass_order(std::string_view text);

/// Checks that each virtual stage runs each micro-batch once forward and once backward, on its rank, with ascending
/// micro-batches. Also checks that the ranks cannot deadlock if each runs its actions in order. Throws UsageError that
/// names the first action at fault.
void check(const PassOrder& order, const PipelineShape& shape);

/// Where a rank issues its receives. receives[i] lists actions whose input comes from another rank. The rank receives
/// these inputs, in this order, right before its i-th action. Each input is received before the action that needs it.
///
/// All ranks issue their receives at these places, and their sends right after the actions that produce the data. So
/// all ranks issue transfers in one order: by the assumed times at which the data is produced. This order has no
/// deadlock, whatever the real times are, and even if a rank has a single queue for its transfers. If the real times
/// differ from the assumed ones, a transfer may wait in the queue for one whose data is produced later.
using Receives = std::vector<std::vector<PipelineAction>>;
/// Returns the receives of all ranks. Assumes that passes and transfers take `times`.
std::vector<Receives> receives_of(const PassOrder& order, bool tied_ends = false, const StagePassTimes& times = {});

/// Returns the maximum number of micro-batches for which one rank has run forward, but not yet the complete backward. A
/// micro-batch counts once for each virtual stage of the rank in which it is in flight.
int max_in_flight(const std::vector<PipelineAction>& actions);
/// Like max_in_flight() without receives, but counts a micro-batch as soon as the input of its forward pass has been
/// received.
int max_in_flight(const std::vector<PipelineAction>& actions, const Receives& receives);
/// Returns the maximum, over the rank's virtual stages, of max_in_flight() for the actions of that virtual stage alone.
int max_in_flight_of_a_stage(const std::vector<PipelineAction>& actions, const Receives& receives);

}  // namespace aliquot
#pragma GCC visibility pop
