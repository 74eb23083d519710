#include "apps/metrics/pipeline_step.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/options/enum_names.h"

namespace aliquot {
namespace {

/// Rounds to nanoseconds, to keep the file small.
double rounded(double seconds) { return std::round(seconds * 1e9) / 1e9; }

bool is_update(Verb verb) { return verb == Verb::kUpdate || belongs_to_matrix_group(verb); }

PassSpan pass_of(const Plan& plan, const Operation& operation, const TimeSpan& span) {
  if (is_update(operation.verb)) return {"update", -1, -1, span};
  if (!is_model_code(operation.verb)) return {name(operation.verb), -1, -1, span};
  return {name(operation.verb), plan.stage.run_of_use(operation.operand).index, operation.micro_batch, span};
}

bool same_virtual_stage_and_micro_batch(const PassSpan& a, const PassSpan& b) {
  return a.virtual_stage == b.virtual_stage && a.micro_batch == b.micro_batch;
}

/// Renames recompute to the backward pass that follows it.
void name_by_backward(std::vector<PassSpan>& spans) {
  for (std::size_t i = spans.size(); i-- > 0;) {
    const bool followed = i + 1 < spans.size() && same_virtual_stage_and_micro_batch(spans[i], spans[i + 1]);
    if (followed && spans[i].pass == name(Verb::kRecompute)) spans[i].pass = spans[i + 1].pass;
  }
}

std::vector<std::vector<PassSpan>> all_pass_spans(const std::vector<RankTrace>& stages, bool coarse) {
  std::vector<std::vector<PassSpan>> all;
  for (const RankTrace& stage : stages) all.push_back(pass_spans(*stage.plan, stage.timeline, coarse));
  return all;
}

std::size_t count(const std::vector<std::vector<PassSpan>>& spans) {
  std::size_t sum = 0;
  for (const auto& stage : spans) sum += stage.size();
  return sum;
}

Json stage_json(const Timeline& timeline, const std::vector<PassSpan>& spans) {
  Json passes = Json::array(), virtual_stages = Json::array(), micro_batches = Json::array(), starts = Json::array(),
       ends = Json::array();
  for (const PassSpan& span : spans) {
    passes.push_back(span.pass);
    virtual_stages.push_back(span.virtual_stage);
    micro_batches.push_back(span.micro_batch);
    starts.push_back(rounded(timeline.begin_seconds + span.span.start_seconds));
    ends.push_back(rounded(timeline.begin_seconds + span.span.end_seconds));
  }
  return {{"begin_seconds", rounded(timeline.begin_seconds)},
          {"step_seconds", timeline.step_seconds},
          {"bubble_share", timeline.idle_share()},
          {"passes", passes},
          {"virtual_stage", virtual_stages},
          {"micro_batch", micro_batches},
          {"start_seconds", starts},
          {"end_seconds", ends}};
}

}  // namespace

std::vector<PassSpan> pass_spans(const Plan& plan, const Timeline& timeline, bool coarse) {
  // Shorter times are invisible in a drawing.
  const double visible_seconds = timeline.step_seconds / 2000;
  const auto& operations = plan.schedule.operations;
  std::vector<PassSpan> work;
  for (std::size_t id = 0; id < timeline.operations.size(); ++id) {
    const Verb verb = operations[id].verb;
    const TimeSpan& span = timeline.operations[id];
    if (!is_busy_on_compute(operations[id]) || info(verb).actor == Actor::kNone) continue;
    // Leaves out other operations that take almost no time, such as a gather on the compute lane with one rank.
    if (!is_model_code(verb) && !is_update(verb) && span.seconds() < visible_seconds) continue;
    work.push_back(pass_of(plan, operations[id], span));
  }
  if (coarse) name_by_backward(work);
  std::vector<PassSpan> joined;
  for (const PassSpan& next : work) {
    const bool joins = !joined.empty() && joined.back().pass == next.pass &&
                       same_virtual_stage_and_micro_batch(joined.back(), next) &&
                       (coarse || next.span.start_seconds - joined.back().span.end_seconds <= visible_seconds);
    if (joins) {
      joined.back().span.end_seconds = next.span.end_seconds;
    } else {
      joined.push_back(next);
    }
  }
  return joined;
}

Json pipeline_json(const std::vector<RankTrace>& stages) {
  if (stages.empty() ||
      std::ranges::any_of(stages, [](const RankTrace& stage) { return stage.timeline.operations.empty(); }))
    return nullptr;
  auto spans = all_pass_spans(stages, false);
  if (count(spans) > kMaxPassSpans) spans = all_pass_spans(stages, true);
  if (count(spans) > kMaxPassSpans) return nullptr;
  const Plan& plan = *stages.front().plan;
  const bool named = plan.policy.pass_order.empty();
  Json by_stage = Json::array();
  double bubbles = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    by_stage.push_back(stage_json(stages[s].timeline, spans[s]));
    bubbles += stages[s].timeline.idle_share();
  }
  return {{"order", named ? enum_name(kPipelineScheduleWords, plan.policy.pipeline_schedule) : "custom"},
          {"micro_batches", plan.schedule.micro_batch_count},
          {"virtual_stages", plan.policy.virtual_stages},
          {"tied_ends", plan.stage.tied_ends},
          {"bubble_share", bubbles / static_cast<double>(stages.size())},
          {"stages", by_stage}};
}

}  // namespace aliquot
