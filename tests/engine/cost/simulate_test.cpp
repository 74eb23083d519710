// Compares timelines with values computed by hand. The rates are chosen so that all times are exact: for a unit of 512
// elements on two ranks, a gather, reduce, all-gather or update takes 1 s.

#include "engine/cost/simulate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "engine/cost/event_simulator.h"
#include "engine/cost/prices.h"
#include "engine/cost/trace.h"
#include "engine/plan/sizes.h"
#include "kernels/elementwise/kernels.h"
#include "kernels/system/error.h"
#include "tests/engine/plan/chain_model.h"
#include "tests/engine/plan/random_plan.h"

namespace aliquot {
namespace {

constexpr double kNorm = 3.0 / 128;  // seconds for 24 bytes: two partial sums and the flag of an abandoned step

ModelSpec two_units() {
  ModelSpec model;
  for (int u = 0; u < 2; ++u) {
    model.units.push_back(
        {fmt::format("h.{}", u), {{.tensor = {fmt::format("h.{}.\"w\"", u), {512}}}}, GradientMode::kAdd});
    model.uses.push_back({u});
  }
  return model;
}

CostModel cost_model(double forward, double backward) {
  CostModel cost;
  cost.inside_node = {1024, 0};
  cost.copy_bytes_per_second = 3 * 1024;
  cost.update_seconds_per_element = 1.0 / 256;
  cost.uses = {{forward, backward}, {forward, backward}};
  return cost;
}

void expect_spans(const Plan& plan, const Timeline& timeline, const std::vector<std::array<double, 2>>& expected) {
  ASSERT_EQ(timeline.operations.size(), expected.size()) << text(plan);
  for (std::size_t id = 0; id < expected.size(); ++id) {
    EXPECT_DOUBLE_EQ(timeline.operations[id].start_seconds, expected[id][0]) << id << "\n" << text(plan);
    EXPECT_DOUBLE_EQ(timeline.operations[id].end_seconds, expected[id][1]) << id << "\n" << text(plan);
  }
}

TEST(Simulate, Stage2OverlapsAReduceWithTheNextBackward) {
  const Plan p = plan(two_units(), {.zero_stage = 2}, Topology::one_host(2));
  const Timeline timeline = simulate(p, cost_model(10, 20));
  constexpr double kUpdates = 61 + kNorm;
  expect_spans(p, timeline,
               {{0, 10},                         // forward h.0, during all-gather h.1 of the previous step
                {10, 20},                        // forward h.1
                {20, 40},                        // backward h.1
                {40, 41},                        // reduce h.1, hidden by backward h.0
                {40, 60},                        // backward h.0
                {60, 61},                        // reduce h.0, exposed
                {61, kUpdates},                  // norm
                {kUpdates, kUpdates + 1},        // update h.0
                {kUpdates + 1, kUpdates + 2},    // all-gather h.0, hidden by update h.1
                {kUpdates + 1, kUpdates + 2},    // update h.1
                {kUpdates + 2, kUpdates + 3}});  // all-gather h.1, hidden by the next step's forward
  EXPECT_DOUBLE_EQ(timeline.step_seconds, kUpdates + 2);
  EXPECT_DOUBLE_EQ(timeline.compute_seconds, 62);
  EXPECT_DOUBLE_EQ(timeline.communication_seconds, 4 + kNorm);
  EXPECT_DOUBLE_EQ(timeline.hidden_seconds, 3);
  EXPECT_DOUBLE_EQ(timeline.hidden_share(), 3 / (4 + kNorm));
  EXPECT_EQ(timeline.sent_bytes, 4 * 1024 + 24);
  EXPECT_EQ(timeline.received_bytes, timeline.sent_bytes);
}

TEST(Simulate, Stage3PrefetchOverlapsTheGatherOfTheNextUnit) {
  const Topology ranks = Topology::one_host(2);
  const Plan with_prefetch = plan(two_units(), {.zero_stage = 3, .prefetch = 1, .gather = GatherMode::kCopy}, ranks);
  const Plan without_prefetch = plan(two_units(), {.zero_stage = 3, .prefetch = 0, .gather = GatherMode::kCopy}, ranks);
  // The exposed time consists of gather h.0, both forwards and backwards, reduce h.0, the norm and two updates. Without
  // prefetch, gather h.1, the second gather h.0 and reduce h.1 are exposed as well.
  const double exposed = 1 + 60 + 1 + kNorm + 2;
  EXPECT_DOUBLE_EQ(simulate(with_prefetch, cost_model(10, 20)).step_seconds, exposed);
  EXPECT_DOUBLE_EQ(simulate(without_prefetch, cost_model(10, 20)).step_seconds, exposed + 2 + 1)
      << text(without_prefetch);
  EXPECT_EQ(simulate(with_prefetch, cost_model(10, 20)).sent_bytes,
            simulate(without_prefetch, cost_model(10, 20)).sent_bytes);
}

TEST(Simulate, TwoRanksOnACoreComputeAtHalfSpeedIfNoneWaits) {
  const Plan p = plan(two_units(), {.zero_stage = 2}, Topology::one_host(1));
  CostModel cost = cost_model(10, 20);
  cost.cores_per_thread = 1;
  const Timeline alone = simulate(p, cost);
  EXPECT_DOUBLE_EQ(alone.step_seconds, alone.compute_seconds);
  cost.cores_per_thread = 0.5;
  EXPECT_DOUBLE_EQ(simulate(p, cost).step_seconds, 2 * alone.step_seconds);
}

/// While a rank waits for data, another rank on its core computes at full speed.
TEST(Simulate, TwoRanksOnACoreSlowEachOtherDownWhileBothCompute) {
  const Plan p =
      plan(two_units(), {.zero_stage = 3, .prefetch = 0, .gather = GatherMode::kCopy}, Topology::one_host(2));
  for (const double bytes_per_second : {16.0, 64.0, 256.0}) {
    CostModel cost = cost_model(10, 20);
    cost.inside_node.bytes_per_second = bytes_per_second;
    cost.cores_per_thread = 1;
    const Timeline alone = simulate(p, cost);
    cost.cores_per_thread = 0.5;
    const Timeline shared = simulate(p, cost);
    EXPECT_GT(shared.step_seconds, alone.step_seconds);
    EXPECT_LT(shared.step_seconds, alone.step_seconds + alone.compute_seconds);
    const double busy = shared.compute_seconds / shared.step_seconds;
    EXPECT_NEAR(shared.compute_seconds / alone.compute_seconds, 1 + busy, 0.01);
  }
}

/// On GPUs, compute work is enqueued on a stream. So the first gather of a step overlaps with the updates of the
/// previous step.
TEST(Simulate, IssuingAheadOverlapsTheFirstGather) {
  const Plan p = plan(two_units(), {.zero_stage = 3, .gather = GatherMode::kCopy}, Topology::one_host(2));
  CostModel cost = cost_model(10, 20);
  const double on_host = simulate(p, cost).step_seconds;
  cost.compute_issues = false;
  EXPECT_LT(simulate(p, cost).step_seconds, on_host) << text(p);
}

/// A tensor group of two ranks sums 3 rows of 16 elements. Each rank owns 2 rows, so each of the two exchanges moves 2
/// rows, 128 bytes. The barrier is a third round. A gather has two rounds and one exchange.
TEST(Simulate, PricesCollectivesOfUses) {
  ModelSpec model = two_units();
  model.activations = {.uses = {{.output_bytes = 256}, {.output_bytes = 256}}, .backward_bytes = 256};
  model.activations.uses[1].collectives = {{.name = "sum", .rows = 3, .row_elements = 16},
                                           {.name = "gather",
                                            .kind = CollectiveKind::kGather,
                                            .part = UsePart::kBackward,
                                            .buffer = UseBuffer::kBackward,
                                            .rows = 3,
                                            .row_elements = 16}};
  CostModel cost = cost_model(10, 20);
  cost.inside_node = {1024, 0.25};
  cost.between_nodes = {256, 0.5};
  const Policy policy{.zero_stage = 2, .tensor = 2};
  const Plan together = plan(model, policy, Topology::one_host(2));
  const Timeline timeline = simulate(together, cost);
  const double sum = 3 * 0.25 + 2 * 128.0 / 1024, gather = 2 * 0.25 + 128.0 / 1024;
  std::map<OperationId, double> seconds;
  for (OperationId id = 0; id < static_cast<OperationId>(together.schedule.operations.size()); ++id) {
    if (together.schedule.operations[id].verb == Verb::kUseCollective) seconds[id] = timeline.operations[id].seconds();
  }
  ASSERT_EQ(seconds.size(), 2U);
  EXPECT_DOUBLE_EQ(seconds.begin()->second, sum);
  EXPECT_DOUBLE_EQ(seconds.rbegin()->second, gather);
  const Plan alone = plan(two_units(), {.zero_stage = 2}, Topology::one_host(1));
  // The norm of several shard groups sums one flag. Tensor groups then add the sums of tensors, and compare which uses
  // they skip.
  const double norm = 3 * 0.25;
  EXPECT_NEAR(timeline.step_seconds - simulate(alone, cost).step_seconds, sum + gather + norm, 1e-9);
  EXPECT_EQ(timeline.sent_bytes - simulate(alone, cost).sent_bytes, 3 * 128);
  // The model code of the use includes its collectives, but the time of compute does not.
  EXPECT_NEAR(timeline.compute_seconds, simulate(alone, cost).compute_seconds, 1e-9);
  EXPECT_NEAR(timeline.communication_seconds - timeline.hidden_seconds, sum + gather + norm, 1e-9);
  EXPECT_NEAR(timeline.use_collective_seconds, sum + gather, 1e-9);
  EXPECT_NEAR(timeline.idle_share() * timeline.step_seconds, norm, 1e-9);  // collectives are not part of the bubble

  // On two nodes, rank 0 sends its part of 2 rows for each of the three exchanges over the link.
  const Timeline across = simulate(plan(model, policy, testing::hosts(2, 1)), cost);
  EXPECT_EQ(across.crossing_bytes, 3 * 128);
  EXPECT_NEAR(across.step_seconds - timeline.step_seconds, (3 + 2 + 3) * 0.5 + 3 * 128.0 / 256, 1e-9);
}

TEST(Simulate, ViewsSendNoBytes) {
  const Plan p = plan(two_units(), {.zero_stage = 3, .gather = GatherMode::kView}, Topology::one_host(2));
  const Timeline timeline = simulate(p, cost_model(10, 20));
  EXPECT_DOUBLE_EQ(timeline.step_seconds, 60 + 1 + kNorm + 2);
  EXPECT_EQ(timeline.sent_bytes, 2 * 1024 + 24);  // two reduces and the norm
}

/// The sum of the second micro-batch is added to the sum of the first. This is 3 x 1,024 bytes of memory traffic at
/// 3 x 1,024 bytes/s.
TEST(Simulate, PricesAccumulationIntoTheShard) {
  const Plan p = plan(two_units(), {.zero_stage = 2, .micro_batch_count = 2}, Topology::one_host(2));
  const Timeline timeline = simulate(p, cost_model(10, 20));
  EXPECT_DOUBLE_EQ(timeline.step_seconds, 120 + (1 + 1) + kNorm + 2);
  EXPECT_DOUBLE_EQ(timeline.communication_seconds, 4 + 2 + 2 + kNorm);
}

/// There are two nodes of two ranks. Two of the four parts come from the other node and cross the network once. Then
/// three of the four parts are moved between the ranks of a node.
TEST(Simulate, BytesBetweenNodesAreSentOnce) {
  const Plan p = plan(two_units(), {.zero_stage = 2}, testing::hosts(4, 2));
  CostModel cost = cost_model(0, 0);
  cost.inside_node = {1024, 0.25};
  cost.between_nodes = {256, 0.5};
  const Timeline timeline = simulate(p, cost);
  const double shard = 1024, seconds = 0.25 + 3 * shard / 1024 + 0.5 + 2 * shard / 256;
  for (std::size_t id = 0; id < p.schedule.operations.size(); ++id) {
    if (p.schedule.operations[id].verb != Verb::kReduce) continue;
    EXPECT_DOUBLE_EQ(timeline.operations[id].seconds(), seconds);
  }
}

/// The expected values are the bytes that leave a node, for two units with shards of 1,024 bytes. A reduce sends one
/// sum to each rank of another node. A node of one rank sends the gradients of that rank. An all-gather sends the
/// shards of the node once to each other node. If each replica is on a separate node, a rank sends 1,024 bytes to be
/// summed over the replicas. It then sends 1,024 bytes of sums, and the sum of squares of one block.
TEST(Simulate, CountsBytesThatLeaveANode) {
  const auto crossing = [](const Policy& policy, const Topology& topology) {
    const Plan p = plan(two_units(), policy, topology);
    return std::pair(simulate(p, cost_model(10, 20)).crossing_bytes, norm_part_bytes(p));
  };
  const auto [nodes_of_two, norm] = crossing({.zero_stage = 2}, testing::hosts(4, 2));
  EXPECT_EQ(nodes_of_two, 2 * (2 * 1024 + 2 * 1024) + 2 * norm);
  const auto [nodes_of_one, norm_of_one] = crossing({.zero_stage = 2}, testing::hosts(4, 1));
  EXPECT_EQ(nodes_of_one, 2 * (3 * 1024 + 3 * 1024) + 3 * norm_of_one);
  const auto [unequal, norm_of_unequal] = crossing({.zero_stage = 2}, testing::hosts(5, 3));
  // A node of 3 ranks sends the gradients of each rank. Only nodes of 2, 4, 8 ... ranks send their sum.
  EXPECT_EQ(unequal, 2 * (2 * 3 * 1024 + 3 * 1024) + 3 * norm_of_unequal);
  EXPECT_EQ(crossing({.zero_stage = 2}, testing::hosts(4, 4)).first, 0);
  EXPECT_EQ(crossing({.zero_stage = 3, .replica_count = 2}, testing::hosts(4, 2)).first, 2 * 2 * (1024 + 1024 + 8));
  // There are four replicas of two ranks on two nodes. A rank sends its quantized part to the two ranks of its group on
  // the other node, and the quantized sum once to the other node.
  const Policy exchanged{.zero_stage = 3, .replica_count = 4, .quantize_gradients = true};
  EXPECT_EQ(crossing(exchanged, testing::hosts(8, 4)).first,
            2 * 2 * (2 * 2 * encoded_bytes(256) + 2 * encoded_bytes(256)));
}

/// With pipeline stages, the norm combines the flags of all ranks in one round, and the sums of tensors in rounds of
/// 512. If the pipeline stages are on several nodes, each round crosses between nodes.
TEST(Simulate, TheNormOfAPipelineHasRoundsBetweenStages) {
  CostModel cost = cost_model(0, 0);
  cost.uses.clear();
  cost.inside_node = {1024, 0.25};
  cost.between_nodes = {256, 0.5};
  const auto seconds = [&](int units, const Topology& topology) {
    ModelSpec model = testing::chain(units, 1024);
    model.activations = {.uses = std::vector<UseActivations>(static_cast<std::size_t>(units), {.output_bytes = 64}),
                         .backward_bytes = 64};
    const auto stages =
        plan_pipeline(model, {.zero_stage = 0, .pipeline = 2, .pipeline_cut = {units / 2, units / 2}}, topology);
    const std::vector<Price> priced = prices(stages[0], cost);
    const auto norm = std::ranges::find(stages[0].schedule.operations, Verb::kNorm, &Operation::verb);
    return priced[static_cast<std::size_t>(norm - stages[0].schedule.operations.begin())].seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(4, Topology::one_host(2)), 2 * 0.25);
  EXPECT_DOUBLE_EQ(seconds(514, Topology::one_host(2)), 3 * 0.25);
  EXPECT_DOUBLE_EQ(seconds(4, testing::hosts(2, 1)), 2 * (0.25 + 0.5));
}

/// Two pipeline stages exchange 1024 bytes of activations and of gradients for each of 2 micro-batches. The update of
/// the second pipeline stage takes 2 s longer.
TEST(Simulate, PipelineStagesHaveOneClockAndCountTheirTransfers) {
  ModelSpec model = two_units();
  model.units[1].parameters[0].tensor.shape = {1024};
  model.activations = {.uses = {{.output_bytes = 1024}, {.output_bytes = 1024}}, .backward_bytes = 1024};
  CostModel cost = cost_model(10, 20);
  cost.between_nodes = {512, 0};
  const auto simulated = [&](const Topology& topology) {
    return simulate(
        plan_pipeline(model, {.zero_stage = 1, .micro_batch_count = 2, .pipeline = 2, .pipeline_cut = {1, 1}},
                      topology),
        cost);
  };
  const auto one_node = simulated(Topology::one_host(2)), two_nodes = simulated(testing::hosts(2, 1));
  for (const auto& timelines : {one_node, two_nodes}) {
    EXPECT_DOUBLE_EQ(timelines[0].begin_seconds, 0);
    EXPECT_DOUBLE_EQ(timelines[1].begin_seconds, 2);
    EXPECT_DOUBLE_EQ(timelines[0].step_seconds, timelines[1].step_seconds);
  }
  for (const int stage : {0, 1}) {
    EXPECT_DOUBLE_EQ(one_node[stage].transfer_seconds, 4);
    EXPECT_DOUBLE_EQ(one_node[stage].link_seconds, 0);
    EXPECT_DOUBLE_EQ(two_nodes[stage].transfer_seconds, 8);
    EXPECT_DOUBLE_EQ(two_nodes[stage].link_seconds, 4);  // only data that the stage sends
  }
}

/// Simultaneous sends and receives count once.
TEST(Simulate, TransferTimeIsTheUnionOfTransfers) {
  ModelSpec model = two_units();
  model.activations = {.uses = {{.output_bytes = 64}, {.output_bytes = 64}}, .backward_bytes = 64};
  const Plan p = plan_pipeline(model, {.zero_stage = 1, .micro_batch_count = 3, .pipeline = 2, .pipeline_cut = {1, 1}},
                               Topology::one_host(2))[0];
  Timeline timeline;
  timeline.operations.resize(p.schedule.operations.size());
  const std::vector<TimeSpan> spans = {{5, 7}, {0, 2}, {1, 3}, {5, 6}, {1, 2}, {9, 9}};
  std::size_t next = 0;
  for (std::size_t id = 0; id < timeline.operations.size(); ++id) {
    if (is_transfer(p.schedule.operations[id].verb)) timeline.operations[id] = spans.at(next++);
  }
  EXPECT_EQ(next, spans.size());
  add_up(p, {}, timeline);
  EXPECT_DOUBLE_EQ(timeline.transfer_seconds, 5);
  EXPECT_DOUBLE_EQ(timeline.communication_seconds, 8);
}

/// For any gradient type, a replica adds micro-batches in fp32. Each addition reads two values and writes one.
TEST(Simulate, PartialSumsOfReplicasAreAddedInFp32) {
  const Policy policy{.zero_stage = 2,
                      .replica_count = 2,
                      .precision = {.compute = DType::kBFloat16, .gradients = DType::kBFloat16},
                      .micro_batch_count = 2};
  const Plan p = plan(two_units(), policy, Topology::one_host(4));
  const CostModel cost = cost_model(0, 0);
  const std::vector<Price> priced = prices(p, cost);
  std::vector<double> seconds;  // duration of each reduce of unit 0
  for (std::size_t id = 0; id < priced.size(); ++id) {
    const Operation& operation = p.schedule.operations[id];
    if (operation.verb == Verb::kReduce && operation.operand == 0) seconds.push_back(priced[id].seconds);
  }
  ASSERT_EQ(seconds.size(), 2U);
  const double shard_bytes = 4.0 * static_cast<double>(p.flats[0].layout.shard_count());
  EXPECT_DOUBLE_EQ(seconds[1] - seconds[0], 3 * shard_bytes / cost.copy_bytes_per_second);
}

/// Simulates three operations on three lanes, without waits. Returns their time spans in the first step.
std::vector<TimeSpan> simulated(const std::vector<Price>& prices, double compute_speed = 1) {
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

TEST(EventSimulator, ConcurrentCollectivesShareTheLink) {
  const auto spans = simulated({{.seconds = 4, .link_seconds = 4}, {.seconds = 2, .link_seconds = 2}, {}});
  EXPECT_DOUBLE_EQ(spans[1].end_seconds, 4);  // the reduce has half of the link
  EXPECT_DOUBLE_EQ(spans[0].end_seconds, 8);  // the gather shares the link with the next step's reduce
  const auto apart = simulated({{.seconds = 4, .link_seconds = 2}, {.seconds = 2, .link_seconds = 1}, {}});
  EXPECT_DOUBLE_EQ(apart[0].end_seconds, 4);  // each collective needs half of the link
}

TEST(EventSimulator, ComputeAndCommunicationSlowEachOtherDown) {
  const Price gather{.seconds = 2, .seconds_while_computing = 6, .core_share = 0.25};
  const auto spans = simulated({gather, {}, {.seconds = 10}});
  EXPECT_DOUBLE_EQ(spans[0].end_seconds, 6);
  EXPECT_DOUBLE_EQ(spans[2].end_seconds, 6 + 5.5);  // in the first 6 s, at 75 % of full speed, 4.5 s of work are done
  const auto idle = simulated({gather, {}, {}});
  EXPECT_DOUBLE_EQ(idle[0].end_seconds, 2);
}

TEST(EventSimulator, RanksThatShareCoresComputeSlower) {
  EXPECT_DOUBLE_EQ(simulated({{}, {}, {.seconds = 10}}, 0.5)[2].end_seconds, 20);
}

TEST(Simulate, OneRankSendsNoBytes) {
  const Plan p = plan(two_units(), {.zero_stage = 3}, Topology::one_host(1));
  const Timeline timeline = simulate(p, cost_model(10, 20));
  EXPECT_DOUBLE_EQ(timeline.step_seconds, 60 + 4);
  EXPECT_EQ(timeline.sent_bytes, 0);
  EXPECT_DOUBLE_EQ(timeline.hidden_share(), 1);
}

TEST(Simulate, PricesUsesByFlopsWithoutMeasuredTimes) {
  const Plan p = plan(two_units(), {.zero_stage = 3}, Topology::one_host(1));
  CostModel cost = cost_model(0, 0);
  cost.uses.clear();
  cost.flops_per_second = 1024;
  cost.samples_per_micro_batch = 3;
  EXPECT_DOUBLE_EQ(simulate(p, cost).step_seconds, 2 * 3 * (1 + 2) + 4);
  cost.uses = {{1, 1}};
  EXPECT_THROW(simulate(p, cost), UsageError);
}

/// Every timeline respects the order of each lane and all waits, and is never shorter than its compute time.
/// Collectives of a use are within the time of its model code, at its end.
TEST(Simulate, RespectsEveryWaitOfRandomPlans) {
  for (uint64_t seed = 0; seed < 1000 && !HasFailure(); ++seed) {
    const testing::RandomCase drawn = testing::draw(seed);
    const Plan p = plan(drawn.model, drawn.policy, drawn.topology);
    CostModel cost = seed % 2 == 0 ? CostModel::typical_host() : CostModel::typical_gpu();
    const Timeline timeline = simulate(p, cost);
    std::array<double, kLaneCount> lane_end;
    lane_end.fill(-1e9);
    double collective_end = -1e9;
    for (std::size_t id = 0; id < p.schedule.operations.size(); ++id) {
      const Operation& operation = p.schedule.operations[id];
      const TimeSpan& span = timeline.operations[id];
      const double slack = 1e-9;
      double& end = lane_end[static_cast<std::size_t>(operation.lane)];
      if (operation.verb == Verb::kUseCollective) {
        EXPECT_LE(span.end_seconds, end + slack);
        EXPECT_GE(span.start_seconds, collective_end - slack);
        collective_end = span.end_seconds;
      } else {
        EXPECT_GE(span.start_seconds, end - slack);
        end = span.end_seconds;
      }
      for (const Wait& wait : operation.after) {
        const double before = wait.of_previous_step ? timeline.step_seconds : 0;
        EXPECT_GE(span.start_seconds, timeline.operations[wait.operation].end_seconds - before - slack) << text(p);
      }
    }
    EXPECT_GE(timeline.step_seconds, timeline.compute_seconds + timeline.use_collective_seconds - 1e-9);
    EXPECT_LE(timeline.hidden_seconds, timeline.communication_seconds + 1e-9);
  }
}

TEST(Trace, IsJsonWithOneTrackPerLane) {
  ModelSpec model = two_units();
  model.units[0].name = "a \"block\"\\\n";
  const Plan p = plan(model, {.zero_stage = 3, .gather = GatherMode::kCopy}, Topology::one_host(2));
  const Timeline timeline = simulate(p, cost_model(10, 20));
  std::ostringstream out;
  write_trace(out, p, timeline);
  const auto trace = nlohmann::json::parse(out.str());
  EXPECT_EQ(trace["traceEvents"][0]["args"]["name"], "rank 0");
  int tracks = 0, spans = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "M") {
      tracks += event["name"] == "thread_name";
      continue;
    }
    ++spans;
    const auto id = event["args"]["operation"].get<OperationId>();
    EXPECT_EQ(event["name"], title(p, id));
    EXPECT_EQ(event["tid"], static_cast<int>(p.schedule.operations[id].lane));
    EXPECT_NEAR(event["dur"].get<double>(), timeline.operations[id].seconds() * 1e6, 1e-3);
  }
  std::set<Lane> lanes;
  for (const Operation& operation : p.schedule.operations) lanes.insert(operation.lane);
  EXPECT_EQ(tracks, static_cast<int>(lanes.size()));
  EXPECT_GT(spans, 10);
}

}  // namespace
}  // namespace aliquot
