// The proof that the schedules of all pipeline stages together compute every use, each on its own pipeline stage.
#include <algorithm>
#include <fmt/format.h>

#include "engine/proof/validate_parts.h"

namespace aliquot {
namespace {

class WorkChecker {
 public:
  WorkChecker(const std::vector<Plan>& stages, StageDefects& defects)
      : stages_(stages),
        model_(stages.front().model),
        micro_batches_(static_cast<std::size_t>(stages.front().schedule.micro_batch_count)),
        stage_of_use_(model_.uses.size(), -1),
        stage_of_unit_(model_.units.size(), -1),
        forward_(model_.uses.size() * micro_batches_, 0),
        input_(forward_.size(), 0),
        weights_(forward_.size(), 0),
        has_first_part_(forward_.size(), false),
        last_weights_(model_.uses.size(), -1),
        use_count_(model_.units.size(), 0),
        defects_(defects) {
    for (const auto& use : model_.uses) {
      for (const UnitId unit : use) ++use_count_[unit];
    }
    for (const Plan& plan : stages) {
      for (const VirtualStage& run : plan.stage.runs) {
        for (int32_t use = run.first_use; use < run.end_use; ++use) place(use, plan.stage.index);
      }
    }
  }

  void check() {
    for (const Plan& plan : stages_) {
      const auto count = static_cast<OperationId>(plan.schedule.operations.size());
      for (OperationId id = 0; id < count; ++id) visit({plan.stage.index, id}, plan.schedule.operations[id]);
      for (const PlannedBuffer& buffer : plan.schedule.buffers) visit(plan, buffer);
      for (const MatrixGroup& group : plan.matrix_groups) {
        for (const int32_t flat : group.flats) {
          if (!is_here(plan, flat)) add_flat(plan, flat, "a matrix group");
        }
      }
    }
    const int32_t backwards = stages_.front().policy.evaluation ? 0 : 1;
    check_passes("forward", forward_, 1);
    // If a whole backward is missing, both numbers are wrong, but it is reported once.
    if (check_passes("backward", input_, backwards)) check_passes("backward of the weights", weights_, backwards);
  }

 private:
  void place(int32_t use, int32_t stage) {
    stage_of_use_[use] = stage;
    for (const UnitId unit : model_.uses[use]) stage_of_unit_[unit] = stage;
  }

  void visit(const StageOperation& at, const Operation& operation) {
    if (info(operation.verb).operand == Operand::kUnit) check_place(at, stage_of_unit_[operation.operand]);
    if (!is_model_code(operation.verb)) return;
    check_place(at, stage_of_use_[operation.operand]);
    const std::size_t pass =
        static_cast<std::size_t>(operation.operand) * micro_batches_ + static_cast<std::size_t>(operation.micro_batch);
    if (operation.verb == Verb::kForward) ++forward_[pass];
    if (computes_input_gradients(operation.verb)) ++input_[pass];
    if (computes_weight_gradients(operation.verb)) {
      ++weights_[pass];
      check_ascending(at, operation);
    }
    if (operation.verb == Verb::kBackwardInput) has_first_part_[pass] = true;
    if (is_part_of_backward(operation.verb)) check_part(at, operation, has_first_part_[pass]);
  }

  /// Checks that the operations of a use are in ascending order of micro-batches. They add gradients in this order.
  void check_ascending(const StageOperation& at, const Operation& operation) {
    int32_t& last = last_weights_[operation.operand];
    if (operation.micro_batch < last)
      defects_.add(DefectKind::kCut, {at},
                   fmt::format("{} adds gradients after micro-batch {}: expected ascending micro-batches",
                               defects_.describe(at), last));
    last = operation.micro_batch;
  }

  /// Checks that the use declares a split backward, that its gradients are not added to those of other uses, and that
  /// the first part of the backward precedes the second part.
  void check_part(const StageOperation& at, const Operation& operation, bool follows_first_part) {
    const auto use = static_cast<std::size_t>(operation.operand);
    const auto& declared = model_.activations.uses;
    if (use >= declared.size() || !declared[use].splits_backward)
      defects_.add(DefectKind::kCut, {at},
                   fmt::format("{} is a part of a backward that cannot be split", defects_.describe(at)));
    for (const UnitId unit : model_.uses[use]) {
      if (use_count_[unit] == 1) continue;
      defects_.add(DefectKind::kCut, {at},
                   fmt::format("{} is a part of a backward, but unit {} has several uses", defects_.describe(at),
                               model_.units[unit].name));
    }
    if (!follows_first_part)
      defects_.add(DefectKind::kCut, {at},
                   fmt::format("{} does not follow the first part of the same backward", defects_.describe(at)));
  }

  void check_place(const StageOperation& at, int32_t stage) {
    if (stage != at.stage)
      defects_.add(DefectKind::kCut, {at},
                   fmt::format("{} is on the wrong pipeline stage: expected it on pipeline stage {}",
                               defects_.describe(at), stage));
  }

  /// Checks that the owner of the buffer is on this pipeline stage. The input of a virtual stage is an exception: it is
  /// the output of a use on another pipeline stage.
  void visit(const Plan& plan, const PlannedBuffer& buffer) {
    const Owner owner = info(buffer.role).owner;
    if (owner == Owner::kFlat && !is_here(plan, buffer.flat))
      add_flat(plan, buffer.flat, "a buffer of role " + name(buffer.role));
    if (owner != Owner::kUse || stage_of_use_[buffer.flat] == plan.stage.index) return;
    const auto receives = [&](const VirtualStage& run) { return buffer.flat == run.first_use - 1; };
    if (buffer.role == Role::kOutputActivations && std::ranges::any_of(plan.stage.runs, receives)) return;
    defects_.add(DefectKind::kCut, {},
                 fmt::format("pipeline stage {} has a buffer of role {} for {}: expected it only on pipeline stage {}",
                             plan.stage.index, name(buffer.role), describe_use(model_, buffer.flat),
                             stage_of_use_[buffer.flat]));
  }
  bool is_here(const Plan& plan, int32_t flat) const {
    return stage_of_unit_[plan.flats[flat].unit] == plan.stage.index;
  }
  void add_flat(const Plan& plan, int32_t flat, std::string_view what) {
    const UnitId unit = plan.flats[flat].unit;
    defects_.add(DefectKind::kCut, {},
                 fmt::format("pipeline stage {} has {} of unit {}: expected it only on pipeline stage {}",
                             plan.stage.index, what, model_.units[unit].name, stage_of_unit_[unit]));
  }

  /// Returns whether all counts are as expected.
  bool check_passes(std::string_view what, const std::vector<int32_t>& counts, int32_t expected) {
    bool valid = true;
    for (std::size_t pass = 0; pass < counts.size(); ++pass) {
      if (counts[pass] == expected) continue;
      valid = false;
      const auto use = static_cast<int32_t>(pass / micro_batches_);
      defects_.add(DefectKind::kCut, {},
                   fmt::format("pipeline stage {} runs the {} of {} and micro-batch {} {} times: expected {}",
                               stage_of_use_[use], what, describe_use(model_, use), pass % micro_batches_, counts[pass],
                               expected));
    }
    return valid;
  }

  const std::vector<Plan>& stages_;
  const ModelSpec& model_;
  std::size_t micro_batches_;
  std::vector<int32_t> stage_of_use_, stage_of_unit_;
  /// How many operations run the forward, compute gradients of activations, and compute gradients of parameters. Each
  /// is indexed by use * micro_batches_ + micro-batch.
  std::vector<int32_t> forward_, input_, weights_;
  std::vector<bool> has_first_part_;   // same index: whether the first part of a split backward has run
  std::vector<int32_t> last_weights_;  // for each use: the last micro-batch whose gradients of parameters are computed
  std::vector<int32_t> use_count_;     // for each unit
  StageDefects& defects_;
};

}  // namespace

void check_work(const std::vector<Plan>& stages, StageDefects& defects) {
  if (!stages.empty()) WorkChecker(stages, defects).check();
}

}  // namespace aliquot
