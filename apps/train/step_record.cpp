#include "apps/train/step_record.h"

#include <cmath>
#include <fmt/format.h>

namespace aliquot {
namespace {

constexpr std::size_t kMostOperations = 5000;

// To the nanosecond: more says nothing and takes room.
double rounded(double seconds) { return std::round(seconds * 1e9) / 1e9; }

}  // namespace

Json step_plan_json(const Plan& plan) {
  const Schedule& schedule = plan.schedule;
  if (schedule.operations.size() > kMostOperations) return nullptr;
  const Account bytes = account(schedule);
  Json titles = Json::array(), lanes = Json::array(), by_category = Json::object();
  for (std::size_t id = 0; id < schedule.operations.size(); ++id) {
    const Operation& operation = schedule.operations[id];
    const std::string suffix = schedule.micro_batch_count > 1 ? fmt::format(" m{}", operation.micro_batch) : "";
    titles.push_back(title(plan, static_cast<OperationId>(id)) + suffix);
    lanes.push_back(name(operation.lane));
  }
  for (std::size_t c = 0; c < kCategoryCount; ++c) {
    if (bytes.peak[c] == 0) continue;
    Json& series = by_category[std::string(name(static_cast<Category>(c)))] = Json::array();
    for (const BytesByCategory& at : bytes.at) series.push_back(at[c]);
  }
  return {{"titles", titles}, {"lanes", lanes}, {"bytes", by_category}};
}

Json step_times_json(const Timeline& timeline, const PartSeconds& parts) {
  if (timeline.operations.empty() || timeline.operations.size() > kMostOperations) return nullptr;
  Json starts = Json::array(), ends = Json::array();
  for (const TimeSpan& span : timeline.operations) {
    starts.push_back(rounded(span.start_seconds));
    ends.push_back(rounded(span.end_seconds));
  }
  Json by_part = Json::object();
  for (std::size_t p = 0; p < parts.size(); ++p) by_part[std::string(name(static_cast<Part>(p)))] = rounded(parts[p]);
  return {{"start_seconds", starts},
          {"end_seconds", ends},
          {"step_seconds", timeline.step_seconds},
          {"hidden_share", timeline.hidden_share()},
          {"part_seconds", by_part}};
}

}  // namespace aliquot
