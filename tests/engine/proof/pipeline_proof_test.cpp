// Validates random plans of all pipeline stages, and compares the result with the brute-force reference. The
// validator must also report each defect in a send, a receive, their order or their waits.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>
#include <optional>

#include "engine/plan/happens_before.h"
#include "engine/proof/validate.h"
#include "kernels/system/error.h"
#include "tests/engine/plan/brute_force.h"
#include "tests/engine/plan/random_plan.h"
#include "tests/support/all_cases.h"
#include "tests/support/cpu_seconds.h"
#include "tests/support/test_time_scale.h"

namespace aliquot {
namespace {

using testing::describe;
using testing::draw_pipeline;
using testing::RandomCase;
using Stages = std::vector<Plan>;

std::string sentences(const std::vector<Defect>& defects) {
  std::string lines;
  for (const Defect& defect : defects) lines += fmt::format("  {}: {}\n", name(defect.kind), defect.sentence);
  return lines;
}

/// Validates the plan of each pipeline stage alone and returns the defects. If there are none, validates all pipeline
/// stages together.
std::vector<Defect> validate_all(const Stages& stages) {
  std::vector<Defect> all;
  for (const Plan& stage : stages) {
    for (Defect& defect : validate(stage)) all.push_back(std::move(defect));
  }
  return all.empty() ? validate_stages(stages) : all;
}

std::string text(const Stages& stages) {
  std::string lines;
  for (const Plan& stage : stages) lines += fmt::format("stage {}\n{}", stage.stage.index, aliquot::text(stage));
  return lines;
}

std::size_t operation_count(const Stages& stages) {
  std::size_t count = 0;
  for (const Plan& stage : stages) count += stage.schedule.operations.size();
  return count;
}

std::vector<uint64_t> hashes(const Stages& stages) {
  std::vector<uint64_t> all;
  for (const Plan& stage : stages) all.push_back(hash(stage));
  return all;
}

TEST(PipelineProof, AcceptsThousandsOfRandomPipelines) {
  for (uint64_t seed = 0; seed < 2000 && !HasFailure(); ++seed) {
    const RandomCase drawn = draw_pipeline(seed);
    const Stages stages = plan_pipeline(drawn.model, drawn.policy, drawn.topology);
    const auto defects = validate_all(stages);
    EXPECT_TRUE(defects.empty()) << describe(seed, drawn) << "\n" << sentences(defects) << text(stages);
    Stages evaluations;
    for (const Plan& stage : stages) evaluations.push_back(evaluation_of(stage));
    link_stages(evaluations);
    EXPECT_TRUE(validate_all(evaluations).empty()) << describe(seed, drawn) << sentences(validate_all(evaluations));
    EXPECT_EQ(hashes(evaluations_of(stages)), hashes(evaluations)) << describe(seed, drawn);
    if (drawn.policy.replay_every == 0) continue;
    Stages replays;
    for (const Plan& stage : stages) replays.push_back(replay_of(stage));
    link_stages(replays);
    EXPECT_TRUE(validate_all(replays).empty()) << describe(seed, drawn) << sentences(validate_all(replays));
    EXPECT_EQ(hashes(replays_of(stages)), hashes(replays)) << describe(seed, drawn);
  }
}

TEST(PipelineProof, AgreesWithTheBruteForceReference) {
  int compared = 0;
  for (uint64_t seed = 3000; seed < 4500 && !HasFailure(); ++seed) {
    const RandomCase drawn = draw_pipeline(seed, 4, 2);
    const Stages stages = plan_pipeline(drawn.model, drawn.policy, drawn.topology);
    if (operation_count(stages) > 140) continue;
    EXPECT_TRUE(validate_all(stages).empty()) << sentences(validate_all(stages));
    ++compared;
    EXPECT_EQ(testing::find_race(stages), "") << describe(seed, drawn) << "\n" << text(stages);
  }
  EXPECT_GT(compared, 200);
}

struct Mutant {
  std::string kind;
  Stages stages;
};

/// Moves operation `from` of a schedule to position `to`. Drops waits that would then refer to later operations.
void move(Schedule& schedule, OperationId from, OperationId to) {
  const auto count = static_cast<OperationId>(schedule.operations.size());
  std::vector<OperationId> order;
  for (OperationId id = 0; id < count; ++id) {
    if (id != from) order.push_back(id);
  }
  order.insert(order.begin() + to, from);
  std::vector<OperationId> place(order.size());
  for (OperationId id = 0; id < count; ++id) place[static_cast<std::size_t>(order[static_cast<std::size_t>(id)])] = id;
  std::vector<Operation> operations;
  for (const OperationId id : order) operations.push_back(schedule.operations[id]);
  for (OperationId id = 0; id < count; ++id) {
    auto& after = operations[static_cast<std::size_t>(id)].after;
    for (Wait& wait : after) wait.operation = place[static_cast<std::size_t>(wait.operation)];
    std::erase_if(after, [&](const Wait& wait) { return !wait.of_previous_step && wait.operation >= id; });
  }
  for (PlannedBuffer& buffer : schedule.buffers) {
    if (buffer.always) continue;
    const OperationId first = place[static_cast<std::size_t>(buffer.first)];
    buffer.last = std::max(first, place[static_cast<std::size_t>(buffer.last)]);
    buffer.first = std::min(first, buffer.last);
  }
  schedule.operations = std::move(operations);
}

/// Removes an operation, and shortens the lifetimes of buffers that begin or end with it.
void remove(Schedule& schedule, OperationId id) {
  const auto count = static_cast<OperationId>(schedule.operations.size());
  move(schedule, id, count - 1);
  schedule.operations.pop_back();
  for (PlannedBuffer& buffer : schedule.buffers) {
    buffer.last = std::min(buffer.last, count - 2);
    buffer.first = std::min(buffer.first, buffer.last);
  }
  for (Operation& operation : schedule.operations)
    std::erase_if(operation.after, [&](const Wait& wait) { return wait.operation == count - 1; });
}

OperationId next_transfer(const Schedule& schedule, OperationId after) {
  const auto count = static_cast<OperationId>(schedule.operations.size());
  for (OperationId id = after + 1; id < count; ++id) {
    if (is_transfer(schedule.operations[id].verb)) return id;
  }
  return -1;
}

void mutate_transfer(const Stages& stages, std::size_t s, OperationId id, std::vector<Mutant>& mutants) {
  const auto add = [&](std::string kind) -> Schedule& {
    return mutants.emplace_back(Mutant{std::move(kind), stages}).stages[s].schedule;
  };
  const Schedule& original = stages[s].schedule;
  const Operation& operation = original.operations[id];
  remove(add(fmt::format("drop a {}", name(operation.verb))), id);
  add("use another offset of the other stage").operations[id].peer_offset_bytes += 256;
  if (operation.micro_batch + 1 < original.micro_batch_count)
    ++add("transfer another micro-batch").operations[id].micro_batch;
  ++add("transfer the output of another use").operations[id].operand;
  for (const Lane lane : {Lane::kForward0, Lane::kForward1, Lane::kBackward0, Lane::kBackward1, Lane::kExchange}) {
    if (lane != operation.lane) add("move a transfer to another lane").operations[id].lane = lane;
  }
  for (std::size_t w = 0; w < operation.after.size(); ++w) {
    auto& after = add("drop a wait of a transfer").operations[id].after;
    after.erase(after.begin() + static_cast<std::ptrdiff_t>(w));
  }
  if (const OperationId next = next_transfer(original, id); next >= 0) {
    Schedule& swapped = add("swap two transfers");
    move(swapped, next, id);
    move(swapped, id + 1, next);
  }
  for (OperationId other = id + 1; other < static_cast<OperationId>(original.operations.size()); ++other) {
    const auto& after = original.operations[other].after;
    const auto waits = [&](const Wait& wait) { return wait.operation == id && !wait.of_previous_step; };
    if (std::ranges::none_of(after, waits)) continue;
    std::erase_if(add("drop a wait for a transfer").operations[other].after, waits);
  }
  for (OperationId other = 0; other < id; ++other) {
    const auto waits = [&](const Wait& wait) { return wait.operation == id && wait.of_previous_step; };
    if (std::ranges::none_of(original.operations[other].after, waits)) continue;
    std::erase_if(add("drop a wait for a transfer of the previous step").operations[other].after, waits);
  }
  if (is_receive(operation.verb)) {
    OperationId pass = id + 1;
    while (!is_model_code(original.operations[pass].verb) ||
           original.operations[pass].micro_batch != operation.micro_batch)
      ++pass;
    move(add("receive after the pass"), id, pass);
  }
}

struct Tally {
  int made = 0, equivalent = 0, harmless = 0, caught = 0;
};

/// Counts the result of one mutation. Equivalent: the happens-before relation of every pipeline stage is unchanged.
/// Harmless: a happens-before relation changed, but there is neither a race nor a deadlock.
void check_mutant(const Stages& original, const Mutant& mutant, Tally& tally) {
  ++tally.made;
  auto defects = validate_all(mutant.stages);
  // The brute-force reference does not check the groups of buffers. buffer_groups_test tests them.
  std::erase_if(defects, [](const Defect& defect) { return defect.kind == DefectKind::kGroup; });
  const bool compares =
      std::ranges::all_of(defects, [](const Defect& defect) { return defect.kind == DefectKind::kRace; });
  if (compares) {
    // The validator searches each pipeline stage alone for races, and ignores the order that transfers between pipeline
    // stages add. So it agrees with the reference for each pipeline stage alone. It reports at least the races that the
    // reference finds in all pipeline stages together.
    std::string alone;
    for (const Plan& stage : mutant.stages) alone += testing::find_race(stage);
    const std::string together = testing::find_race(mutant.stages);
    EXPECT_EQ(alone.empty(), defects.empty())
        << mutant.kind << ": " << (defects.empty() ? alone : defects.front().sentence) << "\n"
        << text(original) << text(mutant.stages);
    EXPECT_TRUE(together.empty() || !defects.empty()) << mutant.kind << ": " << together << "\n" << text(mutant.stages);
  }
  if (!defects.empty()) {
    ++tally.caught;
    return;
  }
  bool same = operation_count(original) == operation_count(mutant.stages);
  for (std::size_t s = 0; s < original.size() && same; ++s)
    same = HappensBefore(original[s]) == HappensBefore(mutant.stages[s]);
  ++(same ? tally.equivalent : tally.harmless);
}

TEST(PipelineProof, EveryDefectOfATransferIsCaught) {
  std::map<std::string, Tally> table;
  test::CaseSelection selection(3);
  for (uint64_t seed = 0; seed < 250 && !HasFailure(); ++seed) {
    if (!selection.next()) continue;
    const RandomCase drawn = draw_pipeline(seed, 3, 2);
    const Stages original = plan_pipeline(drawn.model, drawn.policy, drawn.topology);
    if (operation_count(original) > 110) continue;
    std::vector<Mutant> mutants;
    for (std::size_t s = 0; s < original.size(); ++s) {
      for (OperationId id = next_transfer(original[s].schedule, -1); id >= 0;
           id = next_transfer(original[s].schedule, id))
        mutate_transfer(original, s, id, mutants);
    }
    for (const Mutant& mutant : mutants) check_mutant(original, mutant, table[mutant.kind]);
  }
  fmt::print("{:<50} {:>8} {:>10} {:>8} {:>8}\n", "mutation", "made", "equivalent", "harmless", "caught");
  for (const auto& [kind, tally] : table) {
    fmt::print("{:<50} {:>8} {:>10} {:>8} {:>8}\n", kind, tally.made, tally.equivalent, tally.harmless, tally.caught);
    EXPECT_GT(tally.caught, 0) << kind;
  }
}

/// 10,000 uses on 16 pipeline stages of 64 ranks, with 16 micro-batches.
TEST(PipelineProof, PlansAndProvesALargePipelineInSeconds) {
  constexpr int kUses = 10'000, kStages = 16, kRanks = 1024;
  ModelSpec model;
  for (int u = 0; u < kUses; ++u) {
    model.units.push_back(
        {fmt::format("h.{}", u), {{.tensor = {fmt::format("h.{}.w", u), {4096}}}}, GradientMode::kAdd});
    model.uses.push_back({u});
    model.activations.uses.push_back({1024, 4096, 512, true});
  }
  model.activations.backward_bytes = 1024;
  Policy policy{.zero_stage = 3, .micro_batch_count = 16};
  policy.pipeline = kStages;
  policy.pipeline_cut.assign(kStages, kUses / kStages);
  Topology world = testing::hosts(kRanks, 8);
  Stages stages;
  const double limit = 5 * test::test_time_scale();
  const double planning = test::reference_cpu_seconds(limit, [&] { stages = plan_pipeline(model, policy, world); });
  const double proof = test::reference_cpu_seconds(limit, [&] { prove(stages); });
  fmt::print("{} operations, planning {:.2f} s, proof {:.2f} s\n", operation_count(stages), planning, proof);
  EXPECT_LT(planning, limit);
  EXPECT_LT(proof, limit);
}

}  // namespace
}  // namespace aliquot
