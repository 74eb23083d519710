// Tests the passes of a pipeline in metrics files, and their drawing.
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <regex>
#include <set>

#include "apps/metrics/pipeline_step.h"
#include "apps/report/charts.h"
#include "apps/train/reporting/rank_timelines.h"
#include "engine/cost/simulate.h"
#include "tests/support/well_formed.h"

namespace aliquot {
namespace {

struct Shape {
  int stages = 2, uses_per_stage = 2, micro_batches = 4;
  int recompute = 0;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
};

/// A model of equal uses, with one rank for each pipeline stage.
std::vector<Plan> plans_of(const Shape& shape) {
  const int virtual_stages = shape.schedule == PipelineSchedule::kInterleaved ? 2 : 1;
  const int uses = shape.stages * virtual_stages * shape.uses_per_stage;
  ModelSpec model;
  for (int u = 0; u < uses; ++u) {
    const std::string name = fmt::format("h.{}", u);
    model.units.push_back({name, {{.tensor = {name + ".w", {512}}}}, GradientMode::kAdd});
    model.uses.push_back({u});
    model.activations.uses.push_back({1024, 4096, 512, true});
  }
  model.activations.backward_bytes = 1024;
  Policy policy{.zero_stage = 1, .micro_batch_count = shape.micro_batches};
  policy.pipeline = shape.stages;
  policy.pipeline_schedule = shape.schedule;
  policy.virtual_stages = virtual_stages;
  policy.pipeline_cut.assign(static_cast<std::size_t>(shape.stages * virtual_stages), shape.uses_per_stage);
  policy.recompute = shape.recompute;
  return plan_pipeline(model, policy, Topology::one_host(shape.stages));
}

/// The pipeline of plans whose uses take 1 s in forward and 2 s in backward.
Json simulated(const std::vector<Plan>& plans) {
  CostModel cost = CostModel::typical_host();
  cost.uses.assign(plans[0].model.uses.size(), {1, 2});
  const std::vector<Timeline> timelines = simulate(plans, cost);
  std::vector<RankTrace> traces;
  for (std::size_t s = 0; s < plans.size(); ++s) traces.push_back({&plans[s], timelines[s], ""});
  return pipeline_json(traces);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(PipelineStep, JoinsTheUsesOfAPass) {
  const Json pipeline = simulated(plans_of({}));
  // 4 forward passes, 4 backward passes, and one update.
  for (const Json& stage : pipeline["stages"]) EXPECT_EQ(stage["passes"].size(), 9u) << stage;
  EXPECT_EQ(pipeline["order"], "1f1b");
  EXPECT_EQ(pipeline["stages"][1]["passes"][0], "forward");
  EXPECT_EQ(pipeline["stages"][1]["passes"][1], "backward");
  EXPECT_NEAR(
      pipeline["stages"][0]["end_seconds"][0].get<double>() - pipeline["stages"][0]["start_seconds"][0].get<double>(),
      2, 1e-6);
}

TEST(PipelineStep, RecomputeIsABoxUnlessThereAreTooMany) {
  // A pass of 2 uses has forward; then recompute and backward of each use.
  const Json pipeline = simulated(plans_of({.recompute = 2}));
  EXPECT_EQ(pipeline["stages"][0]["passes"].size(), 4u * (1 + 4) + 1);
  EXPECT_EQ(pipeline["stages"][0]["passes"][2], "recompute");
  const Json coarse = simulated(plans_of({.stages = 4, .uses_per_stage = 4, .micro_batches = 300, .recompute = 4}));
  ASSERT_TRUE(coarse.is_object());
  EXPECT_EQ(coarse["stages"][0]["passes"].size(), 2u * 300 + 1);
  EXPECT_TRUE(simulated(plans_of({.stages = 4, .uses_per_stage = 1, .micro_batches = 1300})).is_null());
}

TEST(PipelineStep, IsNullWithoutATimeline) {
  const std::vector<Plan> plans = plans_of({});
  EXPECT_TRUE(pipeline_json({{&plans[0], {}, ""}, {&plans[1], {}, ""}}).is_null());
  EXPECT_TRUE(pipeline_json({}).is_null());
}

/// Ranks of the first node keep their clock. Those of other nodes are shifted so that the norms end together.
TEST(PipelineStep, NodesAreAlignedByTheNorm) {
  const std::vector<Plan> plans = plans_of({.stages = 3});
  std::vector<RankTrace> ranks;
  for (std::size_t s = 0; s < 3; ++s) {
    Timeline timeline;
    timeline.operations.resize(plans[s].schedule.operations.size());
    timeline.begin_seconds = 100 + static_cast<double>(s);
    for (std::size_t id = 0; id < timeline.operations.size(); ++id) {
      if (plans[s].schedule.operations[id].verb == Verb::kNorm)
        timeline.operations[id] = {1, 5 + 2 * static_cast<double>(s)};
    }
    ranks.push_back({&plans[s], timeline, ""});
  }
  place_on_one_clock(ranks, {0, 0, 1});
  EXPECT_EQ(ranks[0].timeline.begin_seconds, 0);
  EXPECT_EQ(ranks[1].timeline.begin_seconds, 1);
  EXPECT_EQ(ranks[2].timeline.begin_seconds, -4);
}

TEST(PipelineChart, DrawsEachPassWithItsMicroBatch) {
  const Json pipeline = simulated(plans_of({.stages = 4, .micro_batches = 8}));
  const std::string chart = pipeline_chart({"a <b>", pipeline}, 0);
  EXPECT_EQ(test::xml_problem(chart), "");
  EXPECT_EQ(count(chart, "<title>forward, micro-batch "), 32u);
  EXPECT_EQ(count(chart, "<title>backward, micro-batch "), 32u);
  for (int m = 0; m < 8; ++m)  // forward and backward on each pipeline stage
    EXPECT_EQ(count(chart, fmt::format("fill=\"#FFFFFF\">{}</text>", m)), 8u) << m;
  for (const char* text : {">forward</text>", ">backward</text>", ">update</text>", ">idle</text>", " s</text>"})
    EXPECT_GE(count(chart, text), 1u) << text;
  EXPECT_EQ(count(chart, "virtual stage"), 0u);
}

TEST(PipelineChart, VirtualStagesHaveShades) {
  const Json pipeline = simulated(plans_of({.schedule = PipelineSchedule::kInterleaved}));
  const std::string chart = pipeline_chart({"a", pipeline}, 0);
  EXPECT_EQ(test::xml_problem(chart), "");
  std::set<std::string> fills;
  const std::regex forward("fill=\"(#[0-9A-F]{6})\"[^>]*><title>forward, micro-batch [0-9]+, virtual stage");
  for (std::sregex_iterator it(chart.begin(), chart.end(), forward), end; it != end; ++it) fills.insert((*it)[1]);
  EXPECT_EQ(fills, (std::set<std::string>{"#0072B2", "#99C7E0"}));
  EXPECT_EQ(count(chart, ">last virtual stage</text>"), 1u);
}

/// Verbs that split the backward pass have colours of their own.
TEST(PipelineChart, ColoursAreByPass) {
  std::set<std::string_view> colours;
  for (const char* pass : {"forward", "backward", "backward-input", "backward-weights", "recompute", "update"})
    colours.insert(verb_colour(pass));
  EXPECT_EQ(colours.size(), 6u);
  EXPECT_EQ(verb_colour("backward-input h.0+h.1"), verb_colour("backward-input"));
  EXPECT_EQ(verb_colour("nothing"), "#999999");
  EXPECT_EQ(lighter("#0072B2", 0), "#0072B2");
  EXPECT_EQ(text_colour_on("#0072B2"), "#FFFFFF");
  EXPECT_EQ(text_colour_on("#E69F00"), "#000000");
}

/// The extent of a text, estimated from its number of characters.
struct Text {
  double x, y, width, height;
};

std::vector<Text> centered_texts(const std::string& chart) {
  std::vector<Text> texts;
  const std::regex text(
      "<text x=\"([0-9.]+)\" y=\"([0-9.]+)\" text-anchor=\"middle\" font-size=\"([0-9.]+)\"[^>]*>([^<]*)<");
  for (std::sregex_iterator it(chart.begin(), chart.end(), text), end; it != end; ++it) {
    const double font = std::stod((*it)[3]), width = 0.56 * font * static_cast<double>((*it)[4].length());
    texts.push_back({std::stod((*it)[1]) - width / 2, std::stod((*it)[2]) - font, width, font});
  }
  return texts;
}

/// In large drawings, numbers that do not fit are left out. No texts overlap, and no font is smaller than 7 px.
TEST(PipelineChart, LargePipelinesHaveNoTextsThatOverlap) {
  for (const auto& [stages, micro_batches] :
       {std::pair(16, 64), std::pair(64, 8), std::pair(3, 400), std::pair(4, 16)}) {
    const Json pipeline = simulated(plans_of({.stages = stages, .uses_per_stage = 1, .micro_batches = micro_batches}));
    ASSERT_TRUE(pipeline.is_object());
    const std::string chart = pipeline_chart({"a", pipeline}, 0);
    EXPECT_LT(chart.size(), 2'000'000u);
    std::vector<Text> texts = centered_texts(chart);
    EXPECT_GE(texts.size(), 5u);  // at least the ticks
    std::ranges::sort(texts, {}, [](const Text& text) { return std::pair(text.y, text.x); });
    for (std::size_t i = 1; i < texts.size(); ++i) {
      EXPECT_GE(texts[i].height, 7);
      if (texts[i].y != texts[i - 1].y) continue;
      EXPECT_GE(texts[i].x, texts[i - 1].x + texts[i - 1].width);
    }
  }
}

TEST(PipelineChart, ComparableStepsHaveACommonTimeAxis) {
  const auto ends_at = [](const std::string& page, std::size_t chart) {  // right edge of the first row
    std::smatch found;
    std::string rest = page;
    const std::regex row("<rect x=\"([0-9.]+)\" y=\"64.0\" width=\"([0-9.]+)\"[^>]*><title>pipeline stage 0");
    for (std::size_t i = 0; i <= chart; ++i) {
      if (!std::regex_search(rest, found, row)) return 0.0;
      const double end = std::stod(found[1]) + std::stod(found[2]);
      if (i == chart) return end;
      rest = found.suffix();
    }
    return 0.0;
  };
  const auto section = [](int other) {
    std::vector<ReportPlan> plans;
    for (const int micro_batches : {4, other})
      plans.push_back({"a", {{"pipeline", simulated(plans_of({.micro_batches = micro_batches}))}}});
    return pipeline_section({}, plans);
  };
  EXPECT_NEAR(ends_at(section(8), 1), 980 - 62, 1);
  EXPECT_LT(ends_at(section(8), 0), 600);             // half as long as the other step
  EXPECT_NEAR(ends_at(section(40), 0), 980 - 62, 1);  // too short for a common axis
  EXPECT_EQ(pipeline_section({}, {}), "");
}

}  // namespace
}  // namespace aliquot
