// Tests that the validator rejects a schedule with one defect. Each kind of mutation is applied to many schedules.

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "engine/plan/happens_before.h"
#include "engine/proof/validate.h"
#include "kernels/system/error.h"
#include "tests/engine/plan/brute_force.h"
#include "tests/engine/plan/random_plan.h"
#include "tests/support/all_cases.h"

namespace aliquot {
namespace {

using Operations = std::vector<Operation>;

/// Moves operation from[i] to position i and adjusts waits and buffers. Drops waits that would then refer to later
/// operations, because a planner would not write them for this order.
void reorder(Schedule& schedule, const std::vector<OperationId>& from) {
  std::vector<OperationId> to(schedule.operations.size(), -1);
  for (std::size_t i = 0; i < from.size(); ++i) to[from[i]] = static_cast<OperationId>(i);
  Operations operations;
  for (const OperationId id : from) operations.push_back(schedule.operations[id]);
  for (std::size_t i = 0; i < operations.size(); ++i) {
    auto& after = operations[i].after;
    for (Wait& wait : after) wait.operation = to[wait.operation];
    std::erase_if(after, [&](const Wait& wait) {
      return wait.operation < 0 || (!wait.of_previous_step && wait.operation >= static_cast<OperationId>(i));
    });
  }
  const auto last = static_cast<OperationId>(operations.size()) - 1;
  for (PlannedBuffer& buffer : schedule.buffers) {
    if (buffer.always) {
      buffer.last = last;
      continue;
    }
    const OperationId first = to[buffer.first], end = to[buffer.last];
    buffer.first = first < 0 ? std::min(end, last) : first;
    buffer.last = std::max(buffer.first, end < 0 ? buffer.first : end);
  }
  schedule.operations = std::move(operations);
}

std::vector<OperationId> identity(const Schedule& schedule) {
  std::vector<OperationId> from(schedule.operations.size());
  std::iota(from.begin(), from.end(), 0);
  return from;
}

struct Mutant {
  std::string kind;
  Plan plan;
};
using Mutants = std::vector<Mutant>;

Plan& add(Mutants& mutants, std::string kind, const Plan& plan) {
  return mutants.emplace_back(Mutant{std::move(kind), plan}).plan;
}

void mutate_waits(const Plan& plan, Mutants& mutants) {
  for (std::size_t id = 0; id < plan.schedule.operations.size(); ++id) {
    const auto& after = plan.schedule.operations[id].after;
    for (std::size_t w = 0; w < after.size(); ++w) {
      auto& without = add(mutants, after[w].of_previous_step ? "drop wait for previous step" : "drop a wait", plan)
                          .schedule.operations[id]
                          .after;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(w));
      if (after[w].of != GroupId::kRank)
        add(mutants, "wait for this rank only", plan).schedule.operations[id].after[w].of = GroupId::kRank;
      if (after[w].of == GroupId::kShard && plan.policy.replica_count > 1)
        add(mutants, "wait for another group", plan).schedule.operations[id].after[w].of = GroupId::kReplica;
      if (!after[w].of_previous_step) {
        add(mutants, "wait for previous step instead", plan).schedule.operations[id].after[w].of_previous_step = true;
      }
    }
  }
}

void mutate_operations(const Plan& plan, Mutants& mutants) {
  const auto& operations = plan.schedule.operations;
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    const Verb verb = operations[id].verb;
    auto from = identity(plan.schedule);
    from.erase(from.begin() + id);
    reorder(add(mutants, fmt::format("drop a {}", name(verb)), plan).schedule, from);
    if (verb == Verb::kReduce || verb == Verb::kUpdate || verb == Verb::kAllGatherParameters ||
        verb == Verb::kAllGatherGradients || verb == Verb::kReplicaAllReduce || verb == Verb::kUseCollective ||
        verb == Verb::kSumOverTensor || verb == Verb::kCompareState || verb == Verb::kDigestGradients ||
        belongs_to_matrix_group(verb)) {
      Schedule& twice = add(mutants, fmt::format("{} twice", name(verb)), plan).schedule;
      twice.operations.push_back(operations[id]);
      auto order = identity(twice);
      std::rotate(order.begin() + id + 1, order.end() - 1, order.end());
      reorder(twice, order);
    }
    for (const Lane lane : {Lane::kCompute, Lane::kGather, Lane::kReduce, Lane::kExchange, Lane::kIo}) {
      if (lane == operations[id].lane) continue;
      add(mutants, "move to another lane", plan).schedule.operations[id].lane = lane;
    }
    if (verb != Verb::kRelease) continue;
    for (OperationId use = id - 1; use >= 0; --use) {
      if (!is_model_code(operations[use].verb)) continue;
      auto early = identity(plan.schedule);
      std::rotate(early.begin() + use, early.begin() + id, early.begin() + id + 1);
      const auto& units = plan.model.uses[operations[use].operand];
      if (std::count(units.begin(), units.end(), operations[id].operand) == 0) break;
      reorder(add(mutants, "release before the last use", plan).schedule, early);
      break;
    }
  }
}

/// Makes mutants in which digests are compared before the last model code that reads the parameters, for another unit,
/// or after an all-gather, and mutants without the buffer of digests.
void mutate_comparisons(const Plan& plan, Mutants& mutants) {
  const auto& operations = plan.schedule.operations;
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    if (operations[id].verb != Verb::kCompareState) continue;
    OperationId code = id;
    const auto uses_unit = [&](const Operation& operation) {
      return reads_parameters(operation.verb) &&
             std::ranges::count(plan.model.uses[operation.operand], operations[id].operand) > 0;
    };
    while (code >= 0 && !uses_unit(operations[code])) --code;
    auto early = identity(plan.schedule);
    std::rotate(early.begin() + code, early.begin() + id, early.begin() + id + 1);
    reorder(add(mutants, "compare state before its last use", plan).schedule, early);
    for (UnitId unit = 0; unit < static_cast<UnitId>(plan.model.units.size()); ++unit) {
      if (unit != operations[id].operand)
        add(mutants, "compare state of another unit", plan).schedule.operations[id].operand = unit;
    }
    auto late = identity(plan.schedule);
    std::rotate(late.begin() + id, late.begin() + id + 1, late.end());
    const bool published = std::ranges::any_of(operations, [&](const Operation& other) {
      return other.verb == Verb::kAllGatherParameters && other.operand == operations[id].operand;
    });
    if (published) reorder(add(mutants, "compare state after its all-gather", plan).schedule, late);
  }
  for (std::size_t b = 0; b < plan.schedule.buffers.size(); ++b) {
    if (plan.schedule.buffers[b].role != Role::kStateDigests) continue;
    auto& buffers = add(mutants, "a flat buffer without digests", plan).schedule.buffers;
    buffers.erase(buffers.begin() + static_cast<std::ptrdiff_t>(b));
  }
}

/// Makes mutants of the plan. In each of them, a buffer of repeated sums or of their digests is missing, is too small,
/// or is not persistent although it has digests.
void mutate_repeated_sums(const Plan& plan, Mutants& mutants) {
  for (std::size_t b = 0; b < plan.schedule.buffers.size(); ++b) {
    const Role role = plan.schedule.buffers[b].role;
    const bool has_digests = role == Role::kSumDigests || role == Role::kReplicaSumDigests;
    if (!has_digests && role != Role::kRepeatedSums && role != Role::kRepeatedReplicaSums) continue;
    auto& buffers = add(mutants, "a flat buffer without repeated sums or their digests", plan).schedule.buffers;
    buffers.erase(buffers.begin() + static_cast<std::ptrdiff_t>(b));
    if (has_digests) add(mutants, "digests of sums that do not persist", plan).schedule.buffers[b].always = false;
    if (plan.schedule.buffers[b].size_bytes > 0)
      add(mutants, "too little memory for repeated sums", plan).schedule.buffers[b].size_bytes -= 8;
  }
}

/// Makes mutants in which digests of gradients are computed before the last backward, after the next operation that
/// changes the gradients, or for another unit or micro-batch, and mutants without the buffer of digests.
void mutate_gradient_digests(const Plan& plan, Mutants& mutants) {
  const auto& operations = plan.schedule.operations;
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    if (operations[id].verb != Verb::kDigestGradients) continue;
    const UnitId unit = operations[id].operand;
    const auto writes = [&](const Operation& operation) {
      const bool adds =
          computes_weight_gradients(operation.verb) && std::ranges::count(plan.model.uses[operation.operand], unit) > 0;
      return adds || (operation.verb == Verb::kReduce && operation.operand == unit);
    };
    OperationId before = id, after = id;
    while (before >= 0 && !writes(operations[before])) --before;
    auto early = identity(plan.schedule);
    std::rotate(early.begin() + before, early.begin() + id, early.begin() + id + 1);
    reorder(add(mutants, "digest before the last backward", plan).schedule, early);
    while (after < static_cast<OperationId>(operations.size()) && !writes(operations[after])) ++after;
    if (after < static_cast<OperationId>(operations.size())) {
      auto late = identity(plan.schedule);
      std::rotate(late.begin() + id, late.begin() + id + 1, late.begin() + after + 1);
      // A separate buffer has the gradients of one micro-batch, so a later backward of another one changes nothing.
      if (operations[after].verb == Verb::kReduce || !plan.schedule.accumulate_into_shard)
        reorder(add(mutants, "digest after gradients change", plan).schedule, late);
    }
    for (UnitId other = 0; other < static_cast<UnitId>(plan.model.units.size()); ++other) {
      if (other != unit) add(mutants, "digest of another unit", plan).schedule.operations[id].operand = other;
    }
    if (plan.schedule.micro_batch_count > 1)
      add(mutants, "digest of another micro-batch", plan).schedule.operations[id].micro_batch = 1;
  }
  for (std::size_t b = 0; b < plan.schedule.buffers.size(); ++b) {
    if (plan.schedule.buffers[b].role != Role::kGradientDigests) continue;
    auto& buffers = add(mutants, "a flat buffer without digests of gradients", plan).schedule.buffers;
    buffers.erase(buffers.begin() + static_cast<std::ptrdiff_t>(b));
  }
  mutate_repeated_sums(plan, mutants);
}

/// Removes both copies of an offloaded buffer and shortens the slot's lifetime, so that the update uses a slot without
/// data.
void mutate_copies(const Plan& plan, Mutants& mutants) {
  const auto& operations = plan.schedule.operations;
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    const bool is_momentum = operations[id].verb == Verb::kMuonMomentum;
    if (operations[id].verb != Verb::kUpdate && !is_momentum) continue;
    Schedule& schedule = add(mutants, "remove both copies", plan).schedule;
    bool any = false;
    for (PlannedBuffer& buffer : schedule.buffers) {
      const bool slot = offloaded_role_of(buffer.role) && buffer.role != Role::kStagedShard && !buffer.always;
      if (!slot) continue;
      const FlatSpec& flat = plan.flats[buffer.flat];
      const bool momentum_state = flat.matrices && buffer.role == Role::kOptimizer;
      if (momentum_state != is_momentum) continue;
      const auto& members = plan.matrix_groups;
      const bool belongs = is_momentum ? std::ranges::count(members[operations[id].operand].flats, buffer.flat) > 0
                                       : flat.unit == operations[id].operand;
      if (!belongs) continue;
      buffer.first = buffer.last = id;
      any = any || buffer.size_bytes > 0;
    }
    if (!any) mutants.pop_back();
  }
}

/// Makes mutants in which a matrix is at a wrong offset, has no owner, is listed twice or is missing, or in which a
/// matrix group has too little memory.
void mutate_matrices(const Plan& plan, Mutants& mutants) {
  for (std::size_t g = 0; g < plan.matrix_groups.size(); ++g) {
    const auto group = [&](const char* kind) -> MatrixGroup& { return add(mutants, kind, plan).matrix_groups[g]; };
    group("a matrix has no owner").matrices.back().owner = plan.topology.rank_count();
    MatrixGroup& twice = group("a matrix listed twice");
    twice.matrices.push_back(twice.matrices.back());
    group("a matrix is missing").matrices.pop_back();
    group("too little scratch").scratch_bytes -= 4;
    group("a matrix group without a flat buffer").flats.pop_back();
    group("a flat buffer listed twice").flats.push_back(plan.matrix_groups[g].flats.back());
    group("another shape of a matrix").matrices.back().shape.rows += 1;
    if (!plan.matrix_groups[g].in_place) {
      group("a matrix beyond its buffer").matrices.back().offset_bytes += plan.matrix_groups[g].held_bytes;
      group("too little memory for matrices").held_bytes -= 1024;
    }
  }
}

/// Makes mutants in which a flat buffer does not match the parameters of the model.
void mutate_flats(const Plan& plan, Mutants& mutants) {
  for (std::size_t f = 0; f < plan.flats.size(); ++f) {
    for (const auto other : {TensorGradients::kSame, TensorGradients::kSum, TensorGradients::kSlice}) {
      if (other != plan.flats[f].gradients)
        add(mutants, "another relation of gradients", plan).flats[f].gradients = other;
    }
    for (std::size_t t = 0; t < plan.flats[f].layout.tensors().size(); ++t) {
      std::vector<TensorSpec> tensors = plan.flats[f].layout.tensors();
      if (tensors[t].shape.empty()) continue;
      ++tensors[t].shape.back();
      add(mutants, "another shape of a slice", plan).flats[f].layout = FlatLayout(tensors, plan.topology.rank_count());
    }
    auto& parameters = add(mutants, "another parameter of a flat buffer", plan).flats[f].parameters;
    ++parameters.back();
  }
}

/// Changes the group of each operation to every other group.
void mutate_groups(const Plan& plan, Mutants& mutants) {
  for (std::size_t id = 0; id < plan.schedule.operations.size(); ++id) {
    for (int group = 0; group < kGroupCount; ++group) {
      if (static_cast<GroupId>(group) == plan.schedule.operations[id].group) continue;
      add(mutants, "move to another group", plan).schedule.operations[id].group = static_cast<GroupId>(group);
    }
  }
}

/// Makes mutants in which gradients are added over the tensor group at a wrong time, or for another unit.
void mutate_tensor_sums(const Plan& plan, Mutants& mutants) {
  const auto& operations = plan.schedule.operations;
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    if (operations[id].verb != Verb::kSumOverTensor) continue;
    for (OperationId other = 0; other < static_cast<OperationId>(operations.size()); ++other) {
      if (other == id || operations[other].lane != operations[id].lane) continue;
      auto order = identity(plan.schedule);
      std::swap(order[id], order[other]);
      reorder(add(mutants, "swap a tensor sum with an operation", plan).schedule, order);
    }
    for (UnitId unit = 0; unit < static_cast<UnitId>(plan.model.units.size()); ++unit) {
      if (unit != operations[id].operand)
        add(mutants, "a tensor sum of another unit", plan).schedule.operations[id].operand = unit;
    }
    if (plan.schedule.micro_batch_count > 1)
      add(mutants, "a tensor sum of another micro-batch", plan).schedule.operations[id].micro_batch =
          (operations[id].micro_batch + 1) % plan.schedule.micro_batch_count;
    add(mutants, "a tensor sum without waits", plan).schedule.operations[id].after.clear();
  }
}

/// Makes mutants in which a use runs another collective, or runs one at another time.
void mutate_collectives(const Plan& plan, Mutants& mutants) {
  const auto& operations = plan.schedule.operations;
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    const Operation& own = operations[id];
    if (own.verb != Verb::kUseCollective) continue;
    const auto operation = [&](const char* kind) -> Operation& {
      return add(mutants, kind, plan).schedule.operations[id];
    };
    const auto& declared = plan.model.activations.uses[own.operand].collectives;
    for (int32_t other = -1; other <= static_cast<int32_t>(declared.size()); ++other) {
      if (other != own.collective) operation("another collective of the use").collective = other;
    }
    if (plan.schedule.micro_batch_count > 1)
      operation("a collective of another micro-batch").micro_batch =
          (own.micro_batch + 1) % plan.schedule.micro_batch_count;
    for (const OperationId neighbor : {id - 1, id + 1}) {
      if (neighbor == static_cast<OperationId>(operations.size())) continue;
      auto order = identity(plan.schedule);
      std::swap(order[id], order[neighbor]);
      reorder(add(mutants, "swap a collective with its neighbor", plan).schedule, order);
    }
    add(mutants, "a collective beyond its buffer", plan)
        .model.activations.uses[own.operand]
        .collectives[own.collective]
        .rows += 10'000;
  }
}

void mutate_micro_batches(const Plan& plan, Mutants& mutants) {
  for (std::size_t b = 0; b < plan.schedule.buffers.size(); ++b) {
    const int32_t own = plan.schedule.buffers[b].micro_batch;
    if (own < 0) continue;
    for (int32_t other = 0; other < plan.schedule.micro_batch_count; ++other) {
      if (other != own)
        add(mutants, "activations of another micro-batch", plan).schedule.buffers[b].micro_batch = other;
    }
  }
  if (plan.schedule.micro_batches_in_flight > 1)
    --add(mutants, "fewer micro-batches in flight", plan).schedule.micro_batches_in_flight;
}

void mutate_buffers(const Plan& plan, Mutants& mutants) {
  const auto& buffers = plan.schedule.buffers;
  for (std::size_t b = 0; b < buffers.size(); ++b) {
    if (buffers[b].size_bytes == 0) continue;
    add(mutants, "a buffer too small", plan).schedule.buffers[b].size_bytes -= 4;
    if (buffers[b].space == Space::kSharedRange || is_offloaded_role(buffers[b].role)) continue;
    add(mutants, "outside the arena", plan).schedule.buffers[b].offset_bytes = plan.schedule.bytes(buffers[b].space);
    for (std::size_t c = 0; c < buffers.size(); ++c) {
      const bool together = buffers[b].first <= buffers[c].last && buffers[c].first <= buffers[b].last;
      if (c == b || !together || buffers[c].space != buffers[b].space || buffers[c].size_bytes == 0) continue;
      add(mutants, "two buffers at one offset", plan).schedule.buffers[b].offset_bytes = buffers[c].offset_bytes;
      break;
    }
    if (buffers[b].always || buffers[b].first == buffers[b].last) continue;
    add(mutants, "begin a lifetime later", plan).schedule.buffers[b].first += 1;
    // For a spare gradient slot, which exists longer than it is accessed, an earlier end is harmless.
    add(mutants, "end a lifetime earlier", plan).schedule.buffers[b].last -= 1;
  }
}

/// Counts the results of mutations. Equivalent: the happens-before relation is unchanged, because other waits imply the
/// removed wait. Harmless: the relation changed, but the brute-force reference finds no race. Caught: the mutation is a
/// defect, and the validator rejects it.
struct Tally {
  int made = 0, equivalent = 0, harmless = 0, caught = 0;
};

void check_mutant(const Plan& original, const HappensBefore& order, const Mutant& mutant, Tally& tally) {
  ++tally.made;
  auto defects = validate(mutant.plan);
  // The brute-force reference does not check the groups of buffers. buffer_groups_test tests them.
  std::erase_if(defects, [](const Defect& defect) { return defect.kind == DefectKind::kGroup; });
  const bool only_races = std::all_of(defects.begin(), defects.end(),
                                      [](const Defect& defect) { return defect.kind == DefectKind::kRace; });
  if (!only_races) {
    ++tally.caught;
    return;
  }
  const std::string race = testing::find_race(mutant.plan);
  EXPECT_EQ(race.empty(), defects.empty())
      << mutant.kind << ": " << (defects.empty() ? race : defects.front().sentence) << "\n"
      << text(original) << text(mutant.plan);
  const bool same_operations = original.schedule.operations.size() == mutant.plan.schedule.operations.size();
  if (!defects.empty()) {
    ++tally.caught;
  } else if (same_operations && HappensBefore(mutant.plan) == order) {
    ++tally.equivalent;
  } else {
    ++tally.harmless;
  }
}

void mutate_all_but_collectives(const Plan& plan, Mutants& mutants) {
  mutate_waits(plan, mutants);
  mutate_operations(plan, mutants);
  mutate_buffers(plan, mutants);
  mutate_copies(plan, mutants);
  mutate_comparisons(plan, mutants);
  mutate_gradient_digests(plan, mutants);
  mutate_groups(plan, mutants);
  mutate_micro_batches(plan, mutants);
  mutate_matrices(plan, mutants);
}

void print(const std::map<std::string, Tally>& table) {
  fmt::print("{:<34} {:>8} {:>10} {:>8} {:>8}\n", "mutation", "made", "equivalent", "harmless", "caught");
  for (const auto& [kind, tally] : table) {
    fmt::print("{:<34} {:>8} {:>10} {:>8} {:>8}\n", kind, tally.made, tally.equivalent, tally.harmless, tally.caught);
  }
}

void check_mutants(const Plan& original, std::map<std::string, Tally>& table) {
  const HappensBefore order(original);
  ASSERT_TRUE(validate(original).empty()) << validate(original).front().sentence << text(original);
  Mutants mutants;
  mutate_collectives(original, mutants);
  mutate_tensor_sums(original, mutants);
  mutate_flats(original, mutants);
  if (original.topology.rank_count() > 1) mutate_all_but_collectives(original, mutants);
  for (const Mutant& mutant : mutants) check_mutant(original, order, mutant, table[mutant.kind]);
}

TEST(Mutations, EveryDefectIsCaught) {
  std::map<std::string, Tally> table;
  test::CaseSelection selection(3);
  for (uint64_t seed = 0; seed < 400 && !HasFailure(); ++seed) {
    if (!selection.next()) continue;
    // With four ranks, the case may have two replicas of two ranks.
    const testing::RandomCase drawn = testing::draw(seed, seed % 2 == 0 ? 4 : 3, 4);
    const Plan original = plan(drawn.model, drawn.policy, drawn.topology);
    // Of plans for one data rank, mutates only the collectives of uses, because many other mutations are harmless.
    // Skips plans with many operations, because the brute-force reference compares all pairs of accesses.
    const std::size_t most = original.matrix_groups.empty() ? 50 : 60;
    if (original.schedule.operations.size() > most) continue;
    check_mutants(original, table);
    if (original.policy.replay_every != 0) check_mutants(replay_of(original), table);
  }
  print(table);
  for (const auto& [kind, tally] : table) EXPECT_GT(tally.caught, 0) << kind;
}

/// Makes the buffers of a role too small. They lose 1 byte if `by` is 0, up to 256 bytes if it is 1, and about half if
/// it is 2.
void shrink(Schedule& schedule, Role role, int by) {
  for (PlannedBuffer& buffer : schedule.buffers) {
    if (buffer.role != role) continue;
    const int64_t less = by == 0 ? 1 : by == 1 ? std::min<int64_t>(256, buffer.size_bytes) : buffer.size_bytes / 2 + 1;
    buffer.size_bytes = std::max<int64_t>(0, buffer.size_bytes - less);
  }
}

/// Makes vectors so long that GPUs divide the sums for the norm.
void lengthen(ModelSpec& model) {
  for (UnitSpec& unit : model.units) {
    for (ParameterSpec& parameter : unit.parameters) {
      auto& shape = parameter.tensor.shape;
      if (shape.size() == 1 && parameter.split.dimension < 0) shape.front() *= 10'000;
    }
  }
}

TEST(Mutations, TooSmallBuffersOfEveryRoleAreCaught) {
  std::map<Role, int> caught;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    testing::RandomCase drawn = testing::draw(seed, 8, 3);
    drawn.policy.check = seed % 3 == 0;
    if (seed % 5 == 0) drawn = seed % 2 == 0 ? testing::over_nccl(drawn) : testing::on_one_gpu(drawn);
    if (seed % 20 == 0) lengthen(drawn.model);
    const std::optional<Plan> original = testing::planned(drawn);
    if (!original) continue;
    ASSERT_TRUE(validate(*original).empty()) << testing::describe(seed, drawn);
    std::set<Role> roles;
    for (const PlannedBuffer& buffer : original->schedule.buffers) {
      if (buffer.size_bytes > 0) roles.insert(buffer.role);
    }
    for (const Role role : roles) {
      for (const int by : {0, 1, 2}) {
        Plan smaller = *original;
        shrink(smaller.schedule, role, by);
        const auto defects = validate(smaller);
        const bool found = std::ranges::any_of(defects, [&](const Defect& defect) {
          return defect.kind == DefectKind::kPlace && defect.sentence.find(name(role)) != std::string::npos;
        });
        ASSERT_TRUE(found) << name(role) << " in " << testing::describe(seed, drawn);
        ++caught[role];
      }
    }
  }
  for (const RoleInfo& role : kRoleTable) EXPECT_GT(caught[role.role], 0) << name(role.role) << " was never planned";
}

/// If two collectives are swapped on one rank, the comparison with another rank reports the first difference. The
/// collectives include those of tensor groups.
TEST(Mutations, SwappedCollectivesOnOneRankAreCaught) {
  int swapped = 0, detected = 0, of_tensor_groups = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const testing::RandomCase drawn = testing::draw(seed, 3, 4);
    const Plan original = plan(drawn.model, drawn.policy, drawn.topology);
    EXPECT_FALSE(first_collective_mismatch(original, original));
    std::vector<OperationId> collectives;
    for (OperationId id = 0; id < static_cast<OperationId>(original.schedule.operations.size()); ++id) {
      const Operation& operation = original.schedule.operations[id];
      if (is_collective(original, operation) || operation.group == GroupId::kTensor) collectives.push_back(id);
    }
    for (std::size_t i = 1; i < collectives.size(); ++i) {
      const OperationId a = collectives[i - 1], b = collectives[i];
      const auto& operations = original.schedule.operations;
      if (operations[a].verb == operations[b].verb && operations[a].operand == operations[b].operand &&
          operations[a].collective == operations[b].collective)
        continue;
      Plan other = original;
      std::swap(other.schedule.operations[a], other.schedule.operations[b]);
      const auto difference = first_collective_mismatch(original, other);
      ++swapped;
      ASSERT_TRUE(difference) << text(original);
      ++detected;
      EXPECT_EQ(difference->operations, (std::vector<OperationId>{a, a}));
      of_tensor_groups += operations[a].group == GroupId::kTensor && operations[b].group == GroupId::kTensor ? 1 : 0;
    }
  }
  fmt::print("{} pairs of collectives swapped on one rank, {} detected, of which {} were both of a tensor group\n",
             swapped, detected, of_tensor_groups);
  EXPECT_GT(detected, 1000);
  EXPECT_GT(of_tensor_groups, 100);
}

}  // namespace
}  // namespace aliquot
