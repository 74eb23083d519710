#include "engine/cost/simulate.h"

#include <algorithm>
#include <cmath>

#include "engine/cost/event_simulator.h"

namespace aliquot {

CostModel CostModel::typical_host() {
  CostModel cost;
  cost.inside_node = {2e10, 5e-6};
  cost.between_nodes = {1.1e9, 5e-5};
  cost.copy_bytes_per_second = 2e10;
  cost.host_bytes_per_second = 1e10;
  cost.update_seconds_per_element = 28 / 2e10;
  cost.flops_per_second = 2e11;
  return cost;
}

CostModel CostModel::typical_gpu() {
  CostModel cost;
  cost.inside_node = {3.5e11, 1e-5};
  cost.between_nodes = {4.5e10, 2e-5};
  cost.copy_bytes_per_second = 3e12;
  cost.host_bytes_per_second = 5e10;
  cost.update_seconds_per_element = 28 / 3e12;
  cost.flops_per_second = 4e14;
  cost.compute_issues = false;
  return cost;
}

namespace {

/// Returns the spans of a step. The simulator runs the collectives of a use after all of its model code. Here, the span
/// of the model code includes them.
std::vector<TimeSpan> with_collectives(const Plan& plan, std::vector<TimeSpan> spans) {
  std::size_t code = 0;
  for (std::size_t id = 0; id < spans.size(); ++id) {
    const Verb verb = plan.schedule.operations[id].verb;
    if (is_model_code(verb)) code = id;
    if (verb == Verb::kUseCollective) spans[code].end_seconds = spans[id].end_seconds;
  }
  return spans;
}

/// Returns the timeline of one step in the middle of the simulation, on one pipeline stage.
Timeline timeline_of(const Plan& plan, const EventSimulator& simulator, int stage) {
  const auto& operations = plan.schedule.operations;
  constexpr int kStep = EventSimulator::kSteps - 2;
  // Times of compute in this step and in both adjacent steps. Compute of any of these steps may hide collectives of
  // this step.
  std::vector<TimeSpan> busy;
  for (int step = kStep - 1; step <= kStep + 1; ++step) {
    const std::vector<TimeSpan> spans = with_collectives(plan, simulator.spans(step, stage));
    for (std::size_t id = 0; id < operations.size(); ++id) {
      if (is_busy_on_compute(operations[id]) && spans[id].seconds() > 0) busy.push_back(spans[id]);
    }
  }
  Timeline timeline;
  const double begin = simulator.compute_end(kStep - 1, stage);
  timeline.step_seconds = simulator.compute_end(kStep, stage) - begin;
  timeline.begin_seconds = begin - simulator.compute_end(kStep - 1, 0);
  const std::vector<TimeSpan> spans = with_collectives(plan, simulator.spans(kStep, stage));
  for (std::size_t id = 0; id < operations.size(); ++id) {
    const TimeSpan& span = spans[id];
    timeline.operations.push_back({span.start_seconds - begin, span.end_seconds - begin});
    const Price& price = simulator.prices(stage)[id];
    const Verb verb = operations[id].verb;
    if (!is_send(verb)) timeline.received_bytes += price.bytes;
    if (is_receive(verb)) continue;
    timeline.sent_bytes += price.bytes;
    timeline.crossing_bytes += price.crossing_bytes;
    timeline.link_seconds += price.link_seconds;
  }
  for (TimeSpan& span : busy) span = {span.start_seconds - begin, span.end_seconds - begin};
  add_up(plan, busy, timeline);
  return timeline;
}

std::vector<Timeline> timelines_at(const std::vector<const Plan*>& stages, const CostModel& cost,
                                   double compute_speed) {
  std::vector<EventSimulator::StagePrices> with_prices;
  for (const Plan* plan : stages) with_prices.push_back({plan, prices(*plan, cost)});
  const EventSimulator simulator(std::move(with_prices), cost.compute_issues, compute_speed);
  std::vector<Timeline> timelines;
  for (std::size_t s = 0; s < stages.size(); ++s)
    timelines.push_back(timeline_of(*stages[s], simulator, static_cast<int>(s)));
  return timelines;
}

/// Returns the part of the step in which a rank computes, on average over pipeline stages.
double busy_share(const std::vector<Timeline>& timelines) {
  double busy = 0, all = 0;
  for (const Timeline& timeline : timelines) {
    busy += timeline.compute_seconds;
    all += timeline.step_seconds;
  }
  return all > 0 ? busy / all : 1;
}

/// With several ranks per core, a rank computes slower while others on its core compute. They are assumed to compute at
/// times that do not depend on one another. So the speed depends on the share of a step in which a rank computes, and
/// that share depends on the speed: iterates until both agree.
std::vector<Timeline> simulate_stages(const std::vector<const Plan*>& stages, const CostModel& cost) {
  constexpr int kMostIterations = 8;
  constexpr double kTolerance = 1e-3;
  const double others = cost.cores_per_thread > 0 ? std::max(1 / cost.cores_per_thread - 1, 0.0) : 0;
  double speed = 1 / (1 + others);
  std::vector<Timeline> timelines = timelines_at(stages, cost, speed);
  for (int i = 0; i < kMostIterations && others > 0; ++i) {
    const double next = 1 / (1 + others * busy_share(timelines));
    if (std::abs(next - speed) < kTolerance * speed) break;
    speed = next;
    timelines = timelines_at(stages, cost, speed);
  }
  return timelines;
}

}  // namespace

std::vector<Timeline> simulate(const std::vector<Plan>& stages, const CostModel& cost) {
  std::vector<const Plan*> all;
  for (const Plan& plan : stages) all.push_back(&plan);
  return simulate_stages(all, cost);
}

Timeline simulate(const Plan& plan, const CostModel& cost) { return simulate_stages({&plan}, cost).front(); }

}  // namespace aliquot
