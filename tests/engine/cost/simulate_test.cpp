// Timelines computed by hand. The rates are such that every second is exact: a unit of 512 elements is gathered, reduced
// or published over two ranks in one second, and updated in one.

#include "engine/cost/simulate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/cost/event_simulator.h"
#include "engine/cost/prices.h"
#include "engine/cost/trace.h"
#include "engine/plan/sizes.h"
#include "kernels/elementwise/kernels.h"
#include "kernels/system/error.h"
#include "tests/engine/plan/random_plan.h"

namespace aliquot {
namespace {

constexpr double kNorm = 3.0 / 128;  // two units' parts, and whether the step was abandoned: 24 bytes

ModelSpec two_units() {
  ModelSpec model;
  for (int u = 0; u < 2; ++u) {
    model.units.push_back(
        {fmt::format("h.{}", u), {{.tensor = {fmt::format("h.{}.\"w\"", u), {512}}}}, GradientMode::kAdd});
    model.uses.push_back({u});
  }
  return model;
}

CostModel seconds_of(double forward, double backward) {
  CostModel cost;
  cost.inside_node = {1024, 0};
  cost.copy_bytes_per_second = 3 * 1024;
  cost.update_seconds_per_element = 1.0 / 256;
  cost.uses = {{forward, backward}, {forward, backward}};
  return cost;
}

void expect_spans(const Plan& plan, const Timeline& timeline, const std::vector<std::array<double, 2>>& meant) {
  ASSERT_EQ(timeline.operations.size(), meant.size()) << text(plan);
  for (std::size_t id = 0; id < meant.size(); ++id) {
    EXPECT_DOUBLE_EQ(timeline.operations[id].start_seconds, meant[id][0]) << id << "\n" << text(plan);
    EXPECT_DOUBLE_EQ(timeline.operations[id].end_seconds, meant[id][1]) << id << "\n" << text(plan);
  }
}

TEST(Simulate, Stage2HidesAReduceUnderTheNextBackward) {
  const Plan p = plan(two_units(), {.zero_stage = 2}, Topology::one_host(2));
  const Timeline timeline = simulate(p, seconds_of(10, 20));
  constexpr double kUpdates = 61 + kNorm;
  expect_spans(p, timeline,
               {{0, 10},                       // forward h.0, although h.1 of the step before is still being published
                {10, 20},                      // forward h.1
                {20, 40},                      // backward h.1
                {40, 41},                      // reduce h.1, hidden
                {40, 60},                      // backward h.0
                {60, 61},                      // reduce h.0: nothing left to hide it
                {61, kUpdates},                // norm
                {kUpdates, kUpdates + 1},      // update h.0
                {kUpdates + 1, kUpdates + 2},  // publish h.0, under the next update
                {kUpdates + 1, kUpdates + 2},  // update h.1
                {kUpdates + 2, kUpdates + 3}});  // publish h.1, under the next step's forward
  EXPECT_DOUBLE_EQ(timeline.step_seconds, kUpdates + 2);
  EXPECT_DOUBLE_EQ(timeline.compute_seconds, 62);
  EXPECT_DOUBLE_EQ(timeline.communication_seconds, 4 + kNorm);
  EXPECT_DOUBLE_EQ(timeline.hidden_seconds, 3);
  EXPECT_DOUBLE_EQ(timeline.hidden_share(), 3 / (4 + kNorm));
  EXPECT_EQ(timeline.sent_bytes, 4 * 1024 + 24);
  EXPECT_EQ(timeline.received_bytes, timeline.sent_bytes);
}

TEST(Simulate, Stage3PrefetchHidesTheGatherOfTheNextUnit) {
  const Topology ranks = Topology::one_host(2);
  const Plan ahead = plan(two_units(), {.zero_stage = 3, .prefetch = 1, .gather = GatherMode::kCopy}, ranks);
  const Plan late = plan(two_units(), {.zero_stage = 3, .prefetch = 0, .gather = GatherMode::kCopy}, ranks);
  // Gather h.0, both forwards and backwards, reduce h.0, norm and two updates; without prefetch also gather h.1 and,
  // before its backward, gather h.0 again.
  const double shown = 1 + 60 + 1 + kNorm + 2;
  EXPECT_DOUBLE_EQ(simulate(ahead, seconds_of(10, 20)).step_seconds, shown);
  EXPECT_DOUBLE_EQ(simulate(late, seconds_of(10, 20)).step_seconds, shown + 2 + 1) << text(late);
  EXPECT_EQ(simulate(ahead, seconds_of(10, 20)).sent_bytes, simulate(late, seconds_of(10, 20)).sent_bytes);
}

/// Where compute is a stream, the first gather of a step runs under the updates of the step before.
TEST(Simulate, IssuingAheadHidesTheFirstGather) {
  const Plan p = plan(two_units(), {.zero_stage = 3, .gather = GatherMode::kCopy}, Topology::one_host(2));
  CostModel cost = seconds_of(10, 20);
  const double on_host = simulate(p, cost).step_seconds;
  cost.compute_issues = false;
  EXPECT_LT(simulate(p, cost).step_seconds, on_host) << text(p);
}

TEST(Simulate, AViewMovesNothing) {
  const Plan p = plan(two_units(), {.zero_stage = 3, .gather = GatherMode::kView}, Topology::one_host(2));
  const Timeline timeline = simulate(p, seconds_of(10, 20));
  EXPECT_DOUBLE_EQ(timeline.step_seconds, 60 + 1 + kNorm + 2);
  EXPECT_EQ(timeline.sent_bytes, 2 * 1024 + 24);  // two reduces and the norm
}

/// The second micro-batch's sum is added to the first: 3 x 1,024 bytes at 3 x 1,024 a second.
TEST(Simulate, AccumulationIntoTheShardIsPriced) {
  const Plan p = plan(two_units(), {.zero_stage = 2, .micro_batch_count = 2}, Topology::one_host(2));
  const Timeline timeline = simulate(p, seconds_of(10, 20));
  EXPECT_DOUBLE_EQ(timeline.step_seconds, 120 + (1 + 1) + kNorm + 2);
  EXPECT_DOUBLE_EQ(timeline.communication_seconds, 4 + 2 + 2 + kNorm);
}

/// Two nodes of two: what comes from the other node, 2 of 4 parts, crosses once, then 3 of 4 go round inside.
TEST(Simulate, BytesBetweenNodesCrossOnce) {
  const Plan p = plan(two_units(), {.zero_stage = 2}, testing::hosts(4, 2));
  CostModel cost = seconds_of(0, 0);
  cost.inside_node = {1024, 0.25};
  cost.between_nodes = {256, 0.5};
  const Timeline timeline = simulate(p, cost);
  const double shard = 1024, seconds = 0.25 + 3 * shard / 1024 + 0.5 + 2 * shard / 256;
  for (std::size_t id = 0; id < p.schedule.operations.size(); ++id) {
    if (p.schedule.operations[id].verb != Verb::kReduce) continue;
    EXPECT_DOUBLE_EQ(timeline.operations[id].seconds(), seconds);
  }
}

/// What leaves a node, of two units with shards of 1,024 bytes. Reduced: a sum for each rank elsewhere, or the one rank's own
/// parts. Published: the node's parts, to each other node once. Between replicas that each lie on a node: the first part of a
/// shard one way, the second the other, with the sum of a block's squares.
TEST(Simulate, BytesThatLeaveANodeAreCounted) {
  const auto crossing = [](const Policy& policy, const Topology& topology) {
    const Plan p = plan(two_units(), policy, topology);
    return std::pair(simulate(p, seconds_of(10, 20)).crossing_bytes, norm_part_bytes(p.flats));
  };
  const auto [nodes_of_two, norm] = crossing({.zero_stage = 2}, testing::hosts(4, 2));
  EXPECT_EQ(nodes_of_two, 2 * (2 * 1024 + 2 * 1024) + 2 * norm);
  const auto [nodes_of_one, norm_of_one] = crossing({.zero_stage = 2}, testing::hosts(4, 1));
  EXPECT_EQ(nodes_of_one, 2 * (3 * 1024 + 3 * 1024) + 3 * norm_of_one);
  const auto [unequal, norm_of_unequal] = crossing({.zero_stage = 2}, testing::hosts(5, 3));
  EXPECT_EQ(unequal, 2 * (2 * 3 * 1024 + 3 * 1024) + 3 * norm_of_unequal);  // a node of three is no subtree
  EXPECT_EQ(crossing({.zero_stage = 2}, testing::hosts(4, 4)).first, 0);
  EXPECT_EQ(crossing({.zero_stage = 3, .replica_count = 2}, testing::hosts(4, 2)).first, 2 * 2 * (1024 + 1024 + 8));
  // Four replicas of two ranks on two nodes: of a part, code goes to two peers elsewhere; their sums' once to the other node.
  const Policy exchanged{.zero_stage = 3, .replica_count = 4, .quantize_gradients = true};
  EXPECT_EQ(crossing(exchanged, testing::hosts(8, 4)).first,
            2 * 2 * (2 * 2 * encoded_bytes(256) + 2 * encoded_bytes(256)));
}

/// A replica adds micro-batches in fp32, whatever its gradients are: of each element two are read and one is written.
TEST(Simulate, PartialSumsOfReplicasAreAddedInFp32) {
  const Policy policy{.zero_stage = 2,
                      .replica_count = 2,
                      .precision = {.compute = DType::kBFloat16, .gradients = DType::kBFloat16},
                      .micro_batch_count = 2};
  const Plan p = plan(two_units(), policy, Topology::one_host(4));
  const CostModel cost = seconds_of(0, 0);
  const std::vector<Price> priced = prices(p, cost);
  std::vector<double> seconds;  // of the first unit's reduces
  for (std::size_t id = 0; id < priced.size(); ++id) {
    const Operation& operation = p.schedule.operations[id];
    if (operation.verb == Verb::kReduce && operation.operand == 0) seconds.push_back(priced[id].seconds);
  }
  ASSERT_EQ(seconds.size(), 2U);
  const double shard_bytes = 4.0 * static_cast<double>(p.flats[0].layout.shard_count());
  EXPECT_DOUBLE_EQ(seconds[1] - seconds[0], 3 * shard_bytes / cost.copy_bytes_per_second);
}

/// Three operations that wait for nothing, one a lane, played; spans of the first step.
std::vector<TimeSpan> played(const std::vector<Price>& prices, double compute_speed = 1) {
  Plan p;
  p.schedule.operations.resize(3);
  constexpr std::array kVerbs = {Verb::kGather, Verb::kReduce, Verb::kForward};
  constexpr std::array kLanes = {Lane::kGather, Lane::kReduce, Lane::kCompute};
  for (std::size_t id = 0; id < kVerbs.size(); ++id) {
    p.schedule.operations[id].verb = kVerbs[id];
    p.schedule.operations[id].lane = kLanes[id];
  }
  return EventSimulator(p, prices, true, compute_speed).spans(0);
}

TEST(EventSimulator, CollectivesAtOnceShareTheLink) {
  const auto spans = played({{.seconds = 4, .link_seconds = 4}, {.seconds = 2, .link_seconds = 2}, {}});
  EXPECT_DOUBLE_EQ(spans[1].end_seconds, 4);  // at half its speed
  EXPECT_DOUBLE_EQ(spans[0].end_seconds, 8);  // as long again beside the next step's reduce
  const auto apart = played({{.seconds = 4, .link_seconds = 2}, {.seconds = 2, .link_seconds = 1}, {}});
  EXPECT_DOUBLE_EQ(apart[0].end_seconds, 4);  // each wants half of the link
}

TEST(EventSimulator, ComputingAndMovingBytesHoldEachOtherUp) {
  const Price gather{.seconds = 2, .seconds_while_computing = 6, .core_share = 0.25};
  const auto spans = played({gather, {}, {.seconds = 10}});
  EXPECT_DOUBLE_EQ(spans[0].end_seconds, 6);
  EXPECT_DOUBLE_EQ(spans[2].end_seconds, 6 + 5.5);  // in 6 seconds it did what takes 4.5
  const auto idle = played({gather, {}, {}});
  EXPECT_DOUBLE_EQ(idle[0].end_seconds, 2);
}

TEST(EventSimulator, RanksThatShareCoresComputeAsMuchSlower) {
  EXPECT_DOUBLE_EQ(played({{}, {}, {.seconds = 10}}, 0.5)[2].end_seconds, 20);
}

TEST(Simulate, OneRankMovesNothing) {
  const Plan p = plan(two_units(), {.zero_stage = 3}, Topology::one_host(1));
  const Timeline timeline = simulate(p, seconds_of(10, 20));
  EXPECT_DOUBLE_EQ(timeline.step_seconds, 60 + 4);
  EXPECT_EQ(timeline.sent_bytes, 0);
  EXPECT_DOUBLE_EQ(timeline.hidden_share(), 1);
}

TEST(Simulate, UsesAreTakenFromFlopsWhereNotGiven) {
  const Plan p = plan(two_units(), {.zero_stage = 3}, Topology::one_host(1));
  CostModel cost = seconds_of(0, 0);
  cost.uses.clear();
  cost.flops_per_second = 1024;
  cost.samples_per_micro_batch = 3;
  EXPECT_DOUBLE_EQ(simulate(p, cost).step_seconds, 2 * 3 * (1 + 2) + 4);
  cost.uses = {{1, 1}};
  EXPECT_THROW(simulate(p, cost), UsageError);
}

/// A timeline is one that the schedule allows: lanes in order, waits over; and never less than what compute alone takes.
TEST(Simulate, KeepsEveryWaitOfRandomPlans) {
  for (uint64_t seed = 0; seed < 1000 && !HasFailure(); ++seed) {
    const testing::RandomCase drawn = testing::draw(seed);
    const Plan p = plan(drawn.model, drawn.policy, drawn.topology);
    CostModel cost = seed % 2 == 0 ? CostModel::typical_host() : CostModel::typical_gpu();
    const Timeline timeline = simulate(p, cost);
    std::array<double, kLaneCount> lane_end;
    lane_end.fill(-1e9);
    for (std::size_t id = 0; id < p.schedule.operations.size(); ++id) {
      const Operation& operation = p.schedule.operations[id];
      const TimeSpan& span = timeline.operations[id];
      const double slack = 1e-9;
      EXPECT_GE(span.start_seconds, lane_end[static_cast<std::size_t>(operation.lane)] - slack);
      lane_end[static_cast<std::size_t>(operation.lane)] = span.end_seconds;
      for (const Wait& wait : operation.after) {
        const double before = wait.of_previous_step ? timeline.step_seconds : 0;
        EXPECT_GE(span.start_seconds, timeline.operations[wait.operation].end_seconds - before - slack) << text(p);
      }
    }
    EXPECT_GE(timeline.step_seconds, timeline.compute_seconds - 1e-9);
    EXPECT_LE(timeline.hidden_seconds, timeline.communication_seconds + 1e-9);
  }
}

TEST(Trace, IsJsonWithOneTrackALane) {
  ModelSpec model = two_units();
  model.units[0].name = "a \"block\"\\\n";
  const Plan p = plan(model, {.zero_stage = 3, .gather = GatherMode::kCopy}, Topology::one_host(2));
  const Timeline timeline = simulate(p, seconds_of(10, 20));
  std::ostringstream out;
  write_trace(out, p, timeline);
  const auto trace = nlohmann::json::parse(out.str());
  int tracks = 0, boxes = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "M") {
      tracks += event["name"] == "thread_name";
      continue;
    }
    ++boxes;
    const auto id = event["args"]["operation"].get<OperationId>();
    EXPECT_EQ(event["name"], title(p, id));
    EXPECT_EQ(event["tid"], static_cast<int>(p.schedule.operations[id].lane));
    EXPECT_NEAR(event["dur"].get<double>(), timeline.operations[id].seconds() * 1e6, 1e-3);
  }
  EXPECT_EQ(tracks, kLaneCount);
  EXPECT_GT(boxes, 10);
}

}  // namespace
}  // namespace aliquot
