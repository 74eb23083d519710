// Damages the schedules of pipeline stages. They omit a pass, repeat a pass, or have operations or buffers of another
// pipeline stage. The validator must report each defect, in linear time.
#include "tests/engine/proof/stage_mutations.h"
#include "tests/support/cpu_seconds.h"
#include "tests/support/test_time_scale.h"

namespace aliquot {
namespace {

using namespace testing;

/// Returns the first operation from `from` on with one of the verbs, or -1.
OperationId find(const Plan& plan, std::initializer_list<Verb> verbs, OperationId from = 0) {
  const auto& operations = plan.schedule.operations;
  for (OperationId id = from; id < static_cast<OperationId>(operations.size()); ++id) {
    if (std::ranges::count(verbs, operations[id].verb) > 0) return id;
  }
  return -1;
}

/// Removes a pass, or a part of a backward pass. The waits and lifetimes of other operations are then wrong too, but
/// the checks of the cut do not read them.
std::optional<std::string> omit(Stages& stages, std::size_t s, Verb verb) {
  auto& operations = stages[s].schedule.operations;
  const OperationId id = find(stages[s], {verb}, static_cast<OperationId>(operations.size() / 2));
  if (id < 0) return std::nullopt;
  const Operation omitted = operations[id];
  operations.erase(operations.begin() + id);
  const std::string_view what = verb == Verb::kForward           ? "forward"
                                : verb == Verb::kBackwardWeights ? "backward of the weights"
                                                                 : "backward";
  return fmt::format("pipeline stage {} runs the {} of {} and micro-batch {} 0 times: expected 1", s, what,
                     use_name(stages[s], omitted.operand), omitted.micro_batch);
}

/// Mutations of split backwards.
std::map<std::string, Mutate> mutations_of_split_backwards() {
  std::map<std::string, Mutate> all;
  all["omit the first part of a backward"] = [](Stages& stages, std::size_t s) {
    return omit(stages, s, Verb::kBackwardInput);
  };
  all["omit the second part of a backward"] = [](Stages& stages, std::size_t s) {
    return omit(stages, s, Verb::kBackwardWeights);
  };
  all["replace the first part of a backward by the whole"] = [](Stages& stages,
                                                                std::size_t s) -> std::optional<std::string> {
    const OperationId id = find(stages[s], {Verb::kBackwardInput});
    if (id < 0) return std::nullopt;
    stages[s].schedule.operations[id].verb = Verb::kBackward;
    return "does not follow the first part of the same backward";
  };
  all["the second part of a backward before the first"] = [](Stages& stages,
                                                             std::size_t s) -> std::optional<std::string> {
    auto& operations = stages[s].schedule.operations;
    const OperationId second = find(stages[s], {Verb::kBackwardWeights});
    if (second < 0) return std::nullopt;
    const Operation part = operations[second];
    const auto is_first = [&](const Operation& operation) {
      return operation.verb == Verb::kBackwardInput && operation.operand == part.operand &&
             operation.micro_batch == part.micro_batch;
    };
    const auto first = std::ranges::find_if(operations, is_first) - operations.begin();
    std::swap(operations[first].verb, operations[second].verb);
    return "does not follow the first part of the same backward";
  };
  all["the second part of a backward for another micro-batch"] = [](Stages& stages,
                                                                    std::size_t s) -> std::optional<std::string> {
    auto& operations = stages[s].schedule.operations;
    const OperationId first = find(stages[s], {Verb::kBackwardWeights});
    const int32_t batches = stages[s].schedule.micro_batch_count;
    if (first < 0 || batches == 1) return std::nullopt;
    const int32_t use = operations[first].operand, from = operations[first].micro_batch, to = (from + 1) % batches;
    operations[first].micro_batch = to;
    return fmt::format("pipeline stage {} runs the backward of the weights of {} and micro-batch {} 0 times", s,
                       use_name(stages[s], use), from);
  };
  all["split the backward of a use that cannot split"] = [](Stages& stages,
                                                            std::size_t s) -> std::optional<std::string> {
    const OperationId id = find(stages[s], {Verb::kBackwardInput});
    if (id < 0) return std::nullopt;
    const int32_t use = stages[s].schedule.operations[id].operand;
    for (Plan& stage : stages) {
      stage.model.activations.uses[use].splits_backward = false;
      stage.model.activations.uses[use].weight_inputs_bytes = 0;
    }
    return "is a part of a backward that cannot be split";
  };
  return all;
}

/// Mutations of a schedule: work that is missing, repeated, or on the wrong pipeline stage.
std::map<std::string, Mutate> mutations_of_schedules() {
  std::map<std::string, Mutate> all;
  all["omit a backward"] = [](Stages& stages, std::size_t s) { return omit(stages, s, Verb::kBackward); };
  all["omit a forward"] = [](Stages& stages, std::size_t s) { return omit(stages, s, Verb::kForward); };
  all["repeat a pass"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    auto& operations = stages[s].schedule.operations;
    const Operation repeated = operations[find(stages[s], {Verb::kForward, Verb::kBackward})];
    operations.push_back(repeated);
    return fmt::format("pipeline stage {} runs the {} of {} and micro-batch {} 2 times: expected 1", s,
                       name(repeated.verb), use_name(stages[s], repeated.operand), repeated.micro_batch);
  };
  all["a pass on the wrong pipeline stage"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    const std::size_t other = (s + 1) % stages.size();
    auto& operations = stages[s].schedule.operations;
    const OperationId id = find(stages[s], {Verb::kForward});
    operations[id].operand = stages[other].stage.last_use();
    return fmt::format(
        "{} of micro-batch {} (operation {} of pipeline stage {}) is on the wrong pipeline stage: "
        "expected it on pipeline stage {}",
        title(stages[s], id), operations[id].micro_batch, id, s, other);
  };
  all["work on a unit of another pipeline stage"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    const std::size_t other = (s + 1) % stages.size();
    const OperationId id = find(stages[s], {Verb::kUpdate, Verb::kReduce, Verb::kGather, Verb::kCopyIn});
    if (id < 0) return std::nullopt;
    stages[s].schedule.operations[id].operand = static_cast<int32_t>(unit_on(stages[other]));
    return fmt::format("{} of micro-batch", title(stages[s], id));
  };
  all["a buffer of a unit of another pipeline stage"] = [](Stages& stages,
                                                           std::size_t s) -> std::optional<std::string> {
    const std::size_t other = (s + 1) % stages.size(), unit = unit_on(stages[other]);
    if (stages[s].flats_of_unit[unit].empty()) return std::nullopt;
    auto& buffers = stages[s].schedule.buffers;
    const auto owned = std::ranges::find_if(
        buffers, [](const PlannedBuffer& buffer) { return info(buffer.role).owner == Owner::kFlat; });
    if (owned == buffers.end()) return std::nullopt;
    owned->flat = stages[s].flats_of_unit[unit].front();
    return fmt::format("pipeline stage {} has a buffer of role {} of unit {}: expected it only on pipeline stage {}", s,
                       name(owned->role), unit_name(stages[s], unit), other);
  };
  all["activations of another pipeline stage"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    const std::size_t other = (s + 1) % stages.size();
    auto& buffers = stages[s].schedule.buffers;
    const auto kept = std::ranges::find(buffers, Role::kSavedActivations, &PlannedBuffer::role);
    if (kept == buffers.end()) return std::nullopt;
    kept->flat = stages[other].stage.last_use();
    return fmt::format("pipeline stage {} has a buffer of role kept for {}: expected it only on pipeline stage {}", s,
                       use_name(stages[s], kept->flat), other);
  };
  all["a matrix group with a unit of another pipeline stage"] = [](Stages& stages,
                                                                   std::size_t s) -> std::optional<std::string> {
    const std::size_t other = (s + 1) % stages.size(), unit = unit_on(stages[other]);
    if (stages[s].matrix_groups.empty() || stages[s].flats_of_unit[unit].empty()) return std::nullopt;
    stages[s].matrix_groups.back().flats.push_back(stages[s].flats_of_unit[unit].front());
    return fmt::format("pipeline stage {} has a matrix group of unit {}: expected it only on pipeline stage {}", s,
                       unit_name(stages[s], unit), other);
  };
  return all;
}

TEST(ValidateWork, ReportsEveryDefectOfASchedule) { expect_reports(mutations_of_schedules(), false); }

TEST(ValidateWork, ReportsEveryDefectOfASplitBackward) { expect_reports(mutations_of_split_backwards(), false); }

/// Reads all operations and buffers of the plans.
int64_t traverse(const Stages& stages) {
  int64_t sum = 0;
  for (const Plan& stage : stages) {
    for (const Operation& operation : stage.schedule.operations) sum += operation.operand + operation.micro_batch;
    for (const PlannedBuffer& buffer : stage.schedule.buffers) sum += buffer.flat + buffer.offset_bytes;
  }
  return sum;
}

template <typename Body>
double fastest_seconds(const Body& body) {
  double fastest = 1e9;
  for (int repeat = 0; repeat < 9; ++repeat) fastest = std::min(fastest, test::cpu_seconds(body));
  return fastest;
}

struct Measured {
  double seconds = 1e9, traversal_seconds = 1e9;
  /// Returns a ratio that does not depend on whether the plans fit in the caches of the CPU.
  double per_traversal() const { return seconds / traversal_seconds; }
};

Measured fastest(const Measured& a, const Measured& b) {
  return {std::min(a.seconds, b.seconds), std::min(a.traversal_seconds, b.traversal_seconds)};
}

/// Plans a step whose last pipeline stage lacks a backward. The check of the work finds this defect, so
/// validate_stages() runs no later checks.
Stages defective_stages(int pipeline_stages, int uses, int micro_batches) {
  Policy policy{.zero_stage = 3, .micro_batch_count = micro_batches, .pipeline = pipeline_stages};
  policy.pipeline_cut.assign(static_cast<std::size_t>(pipeline_stages), uses / pipeline_stages);
  Stages stages = plan_pipeline(chain_with_activations(uses), policy, testing::hosts(128, 8));
  omit(stages, stages.size() - 1, Verb::kBackward);
  return stages;
}

/// Measures the CPU time of two computations on the same plans: the checks of the cut and of the work, and a traversal.
Measured measure(const Stages& stages) {
  std::size_t operations = 0;
  for (const Plan& stage : stages) operations += stage.schedule.operations.size();
  volatile int64_t sum = 0;
  const Measured measured{fastest_seconds([&] { EXPECT_EQ(validate_stages(stages).size(), 1U); }),
                          fastest_seconds([&] { sum = traverse(stages); })};
  fmt::print("{} pipeline stages, {} uses, {} micro-batches, {} operations: {:.4f} s, {:.2f} traversals\n",
             stages.size(), stages[0].model.uses.size(), stages[0].schedule.micro_batch_count, operations,
             measured.seconds, measured.per_traversal());
  return measured;
}

/// An algorithm that takes time n^1.4 would take 16^0.4 = 3 times as many traversals for 16 times as many uses.
TEST(ValidateWork, TakesLinearTime) {
  constexpr int kUses = 10'240;
  const Measured part = measure(defective_stages(16, kUses / 16, 16)), whole = measure(defective_stages(16, kUses, 16));
  EXPECT_LT(whole.per_traversal(), 2 * part.per_traversal());
  EXPECT_LT(whole.seconds / test::processor_slowness(), 0.5 * test::test_time_scale());
}

/// The number of operations is nearly the same. The plan of each pipeline stage repeats the model. There are so many
/// micro-batches that this takes little of the time. An algorithm that reads all operations for each pipeline stage
/// would take 16 times as long.
TEST(ValidateWork, TakesTheSameTimeForMorePipelineStages) {
  constexpr int kUses = 64, kMicroBatches = 1024;
  const Stages four = defective_stages(4, kUses, kMicroBatches), all = defective_stages(64, kUses, kMicroBatches);
  Measured few, many;
  for (int attempt = 0; attempt < 4; ++attempt) {
    few = fastest(few, measure(four));
    many = fastest(many, measure(all));
  }
  EXPECT_LT(many.per_traversal(), 2.5 * few.per_traversal());
}

}  // namespace
}  // namespace aliquot
