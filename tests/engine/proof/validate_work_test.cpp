// Damages the schedules of pipeline stages. They omit a pass, repeat it, or have operations or buffers of another
// pipeline stage. The validator must report each damage, in linear time.
#include <chrono>

#include "tests/engine/proof/stage_mutations.h"
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

/// Removes a pass. The waits and lifetimes of other operations are then wrong too, but the checks of the cut do not
/// read them.
std::optional<std::string> omit(Stages& stages, std::size_t s, Verb verb) {
  auto& operations = stages[s].schedule.operations;
  const OperationId id = find(stages[s], {verb}, static_cast<OperationId>(operations.size() / 2));
  if (id < 0) return std::nullopt;
  const Operation omitted = operations[id];
  operations.erase(operations.begin() + id);
  return fmt::format("pipeline stage {} runs the {} of {} and micro-batch {} 0 times: expected 1", s, name(verb),
                     use_name(stages[s], omitted.operand), omitted.micro_batch);
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
        "expected it on {}",
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
    return fmt::format("pipeline stage {} has a buffer {} of unit {}: expected it only on pipeline stage {}", s,
                       name(owned->role), unit_name(stages[s], unit), other);
  };
  all["activations of another pipeline stage"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    const std::size_t other = (s + 1) % stages.size();
    auto& buffers = stages[s].schedule.buffers;
    const auto kept = std::ranges::find(buffers, Role::kSavedActivations, &PlannedBuffer::role);
    if (kept == buffers.end()) return std::nullopt;
    kept->flat = stages[other].stage.last_use();
    return fmt::format("pipeline stage {} has a buffer kept of {}: expected it only on pipeline stage {}", s,
                       use_name(stages[s], kept->flat), other);
  };
  return all;
}

TEST(ValidateWork, ReportsEveryDefectOfASchedule) { expect_reports(mutations_of_schedules(), false); }

/// A pipeline of 16 pipeline stages with 16 micro-batches. The last one omits a backward, so that validate_stages()
/// ends after the checks of the cut.
double seconds_of_cut(int uses) {
  constexpr int kStages = 16;
  Policy policy{.zero_stage = 3, .micro_batch_count = 16, .pipeline = kStages};
  policy.pipeline_cut.assign(kStages, uses / kStages);
  Stages stages = plan_pipeline(chain_with_activations(uses), policy, testing::hosts(1024, 8));
  omit(stages, kStages - 1, Verb::kBackward);
  double fastest = 1e9;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(validate_stages(stages).size(), 1U);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began;
    fastest = std::min(fastest, taken.count());
  }
  return fastest;
}

TEST(ValidateWork, TakesLinearTime) {
  constexpr int kUses = 10'240;
  const double quarter = seconds_of_cut(kUses / 4), whole = seconds_of_cut(kUses);
  fmt::print("{} uses in {:.4f} s, {} in {:.4f} s\n", kUses / 4, quarter, kUses, whole);
  EXPECT_LT(whole, 10 * quarter);  // a quadratic algorithm would take 16 times as long
  EXPECT_LT(whole, 0.5 * test::test_time_scale());
}

}  // namespace
}  // namespace aliquot
