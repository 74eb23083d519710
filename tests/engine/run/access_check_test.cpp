// Tests that AccessCheck reports operations that make undeclared accesses or omit declared accesses.
#include "engine/run/memory/access_check.h"

#include <algorithm>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdexcept>

#include "sharding/world.h"
#include "tests/engine/run/checked_pair.h"

namespace aliquot {
namespace {

Plan two_units(int zero_stage) {
  ModelSpec model;
  for (int u = 0; u < 2; ++u) {
    model.units.push_back(
        {fmt::format("h.{}", u), {{.tensor = {fmt::format("h.{}.w", u), {1000}}}}, GradientMode::kAdd});
    model.uses.push_back({u});
  }
  return plan(model, {.zero_stage = zero_stage, .gather = GatherMode::kCopy}, Topology::one_host(2));
}

OperationId find(const Plan& plan, Verb verb) {
  const auto found =
      std::ranges::find_if(plan.schedule.operations, [&](const Operation& each) { return each.verb == verb; });
  return static_cast<OperationId>(found - plan.schedule.operations.begin());
}

/// Returns the message of the std::logic_error that `body` throws, or an empty string.
template <typename Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return {};
}

TEST(AccessCheck, AcceptsDeclaredAccesses) {
  for (const int stage : {0, 1, 2, 3}) {
    const Plan plan = two_units(stage);
    Accesses accesses(plan);
    AccessCheck check(plan);
    for (OperationId id = 0; id < static_cast<OperationId>(plan.schedule.operations.size()); ++id) {
      check.begin(id);
      for (const Access& access : accesses.of(id))
        check.declare_access(access.role, access.flat, access.writes ? AccessMode::kWrites : AccessMode::kReads);
      check.end();
    }
  }
}

TEST(AccessCheck, ReportsUndeclaredAccesses) {
  const Plan plan = two_units(3);
  AccessCheck check(plan);
  const OperationId gather = find(plan, Verb::kGather);
  check.begin(gather);
  check.declare_access(Role::kGathered, 0, AccessMode::kWrites);
  EXPECT_EQ(
      error_of([&] { check.declare_access(Role::kGradients, 0, AccessMode::kReads); }),
      fmt::format(
          "operation {} (gather h.0): read of gradients buffer 0 is not among the declared accesses of the operation",
          gather));
  check.begin(gather);
  EXPECT_NE(
      error_of([&] { check.declare_access(Role::kGathered, 0, AccessMode::kReadsAndWrites); }).find("read of gathered"),
      std::string::npos);
  check.begin(gather);
  EXPECT_NE(error_of([&] { check.declare_access(Role::kGathered, 1, AccessMode::kWrites); }).find("write of gathered"),
            std::string::npos);
}

TEST(AccessCheck, ReportsOmittedAccesses) {
  const Plan plan = two_units(3);
  AccessCheck check(plan);
  const OperationId gather = find(plan, Verb::kGather);
  check.begin(gather);
  check.declare_access(Role::kGathered, 0, AccessMode::kWrites);
  EXPECT_EQ(
      error_of([&] { check.end(); }),
      fmt::format(
          "operation {} (gather h.0): read of parameters buffer 0 is declared in Accesses, but did not take place",
          gather));
  // An update declares both a read and a write of parameters. The test omits the read.
  const OperationId update = find(plan, Verb::kUpdate);
  Accesses accesses(plan);
  check.begin(update);
  for (const Access& access : accesses.of(update)) {
    if (access.role != Role::kParameters || access.writes)
      check.declare_access(access.role, access.flat, access.writes ? AccessMode::kWrites : AccessMode::kReads);
  }
  EXPECT_NE(error_of([&] { check.end(); }).find("read of parameters"), std::string::npos);
}

TEST(AccessCheck, SkippedOperationMayOmitAccesses) {
  const Plan plan = two_units(3);
  AccessCheck check(plan);
  check.begin(find(plan, Verb::kGather));
  check.skip();
  check.end();
  check.begin(find(plan, Verb::kGather));
  EXPECT_NE(error_of([&] { check.end(); }), "");
}

TEST(AccessCheck, ReportsAccessesOutsideAnOperation) {
  const Plan plan = two_units(3);
  AccessCheck check(plan);
  EXPECT_NE(error_of([&] { check.declare_access(Role::kParameters, 0, AccessMode::kReads); }), "");
}

/// Debug and sanitizer builds check the accesses of every operation and throw std::logic_error for a wrong access. A
/// model may declare that the backward of a use reads its output, and that the backward of the next use reads the same
/// memory as its input. The test tries all combinations.
TEST(AccessCheck, AcceptsEveryDeclarationOfActivations) {
  for (const bool output_in_backward : {false, true}) {
    for (const bool input_in_backward : {false, true}) {
      World::threads(
          2,
          [&](World& world) {
            const std::vector<UseActivations> uses = {{.output_bytes = 40, .output_in_backward = output_in_backward},
                                                      {.output_bytes = 40, .input_in_backward = input_in_backward}};
            testing_model::Pair pair(world, {.zero_stage = 3, .clip = 0}, false, uses);
            for (int step = 0; step < 2; ++step) {
              pair.passes();
              EXPECT_FALSE(pair.engine.step().skipped);
            }
          },
          testing_model::kHosts);
    }
  }
}

}  // namespace
}  // namespace aliquot
