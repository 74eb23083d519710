// Checks of the sends and receives of one pipeline stage.
#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "engine/proof/validate_parts.h"

namespace aliquot {
namespace {

constexpr OperationId kNone = -1;

class TransferChecker {
 public:
  explicit TransferChecker(const Proof& proof)
      : proof_(proof),
        stage_(proof.plan.stage),
        operations_(proof.plan.schedule.operations),
        batches_(stage_.runs.size(), std::vector<Batch>(static_cast<std::size_t>(
                                         proof.plan.policy.evaluation ? 1 : proof.plan.schedule.micro_batch_count))) {}

  void walk() {
    for (OperationId id = 0; id < static_cast<OperationId>(operations_.size()); ++id) {
      if (is_transfer(operations_[id].verb)) transfer(id);
      if (operations_[id].verb == Verb::kForward || computes_input_gradients(operations_[id].verb)) pass(id);
    }
    const bool trains = !proof_.plan.policy.evaluation;
    for (const VirtualStage& run : stage_.runs) {
      expect(run, Verb::kReceiveActivations, !run.is_first());
      expect(run, Verb::kSendActivations, !stage_.is_last(run));
      expect(run, Verb::kReceiveGradients, trains && !stage_.is_last(run));
      expect(run, Verb::kSendGradients, trains && !run.is_first());
    }
  }

 private:
  /// The sends and receives of a virtual stage and micro-batch, and the last operations of the passes that produce the
  /// data.
  struct Batch {
    OperationId of(Verb verb) const { return transfers[index(verb)]; }
    OperationId& of(Verb verb) { return transfers[index(verb)]; }
    static std::size_t index(Verb verb) {
      return static_cast<std::size_t>(verb) - static_cast<std::size_t>(Verb::kSendActivations);
    }
    std::array<OperationId, 4> transfers = {kNone, kNone, kNone, kNone};
    OperationId forward_end = kNone, backward_end = kNone;
  };

  Batch& batch(const VirtualStage& run, int32_t micro_batch) {
    return batches_[static_cast<std::size_t>(&run - stage_.runs.data())][static_cast<std::size_t>(micro_batch)];
  }

  void transfer(OperationId id) {
    const Operation& operation = operations_[id];
    const bool to_next = operation.group == GroupId::kNextStage;
    const auto at_boundary = [&](const VirtualStage& run) {
      return operation.operand == (to_next ? run.last_use() : run.first_use - 1);
    };
    const auto run = std::ranges::find_if(stage_.runs, at_boundary);
    if (run == stage_.runs.end())
      return add(id, "transfers data of a use that is not at the boundary of a virtual stage");
    const int boundary = (stage_.index + (to_next ? 0 : stage_.count - 1)) % stage_.count;
    const Lane even = transfers_activations(operation.verb) ? Lane::kForward0 : Lane::kBackward0;
    const Lane odd = transfers_activations(operation.verb) ? Lane::kForward1 : Lane::kBackward1;
    if (operation.lane != (boundary % 2 == 0 ? even : odd))
      add(id, "is not on the lane for its boundary between pipeline stages");
    Batch& batch = this->batch(*run, operation.micro_batch);
    if (batch.of(operation.verb) != kNone) add(id, "repeats a transfer");
    batch.of(operation.verb) = id;
    if (!is_send(operation.verb)) return;
    const bool forward = transfers_activations(operation.verb);
    const OperationId made = forward ? batch.forward_end : batch.backward_end;
    if (made == kNone || !ended(made, id)) add(id, "does not wait for the pass that produces the data");
  }

  /// Checks that the first use of a pass waits for its input. Stores the last operation of the pass, which produces the
  /// data to send.
  void pass(OperationId id) {
    const Operation& operation = operations_[id];
    const VirtualStage& run = stage_.run_of_use(operation.operand);
    Batch& batch = this->batch(run, operation.micro_batch);
    const bool forward = operation.verb == Verb::kForward;
    if (forward && operation.operand == run.last_use()) batch.forward_end = id;
    if (!forward && operation.operand == run.first_use) batch.backward_end = id;
    const bool needs_activations = forward && operation.operand == run.first_use && !run.is_first();
    const bool needs_gradients = !forward && operation.operand == run.last_use() && !stage_.is_last(run);
    if (!needs_activations && !needs_gradients) return;
    const OperationId input = batch.of(needs_activations ? Verb::kReceiveActivations : Verb::kReceiveGradients);
    if (input == kNone || !ended(input, id)) add(id, "does not wait for its input from the neighboring pipeline stage");
  }

  void expect(const VirtualStage& run, Verb verb, bool wanted) {
    const auto count = static_cast<int32_t>(batches_.front().size());
    for (int32_t m = 0; m < count; ++m) {
      const OperationId id = batch(run, m).of(verb);
      if ((id != kNone) == wanted) continue;
      if (wanted) {
        proof_.defects.add(DefectKind::kTransfer, {},
                           fmt::format("the step has no {} of micro-batch {} for uses {} to {}", name(verb), m,
                                       run.first_use, run.last_use()));
      } else {
        add(id, "transfers data that no other pipeline stage receives or sends");
      }
    }
  }

  bool ended(OperationId earlier, OperationId id) const {
    const Moment now = proof_.order.moment(1, id);
    return proof_.order.ended_here(proof_.order.moment(1, earlier), proof_.order.at_start(now));
  }
  void add(OperationId id, std::string_view what) {
    proof_.defects.add(DefectKind::kTransfer, {id}, fmt::format("{} {}", proof_.defects.describe(id), what));
  }

  const Proof& proof_;
  const PipelineStage& stage_;
  const std::vector<Operation>& operations_;
  std::vector<std::vector<Batch>> batches_;  // one per virtual stage, as in PipelineStage::runs, and micro-batch
};

}  // namespace

void check_transfers(const Proof& proof) { TransferChecker(proof).walk(); }

}  // namespace aliquot
