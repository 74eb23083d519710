#include "engine/cost/trace.h"

#include <algorithm>
#include <fmt/format.h>

namespace aliquot {
namespace {

std::string json_string(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      json += c;
    }
  }
  return json + "\"";
}

std::string track(std::size_t rank, Lane lane) {
  return fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})", rank,
                     static_cast<int>(lane), json_string(name(lane)));
}

/// Names the process. Browsers sort processes by the sort index.
std::string process(std::size_t rank, std::string_view name) {
  return fmt::format(R"({{"ph":"M","name":"process_name","pid":{0},"args":{{"name":{1}}}}},)"
                     "\n"
                     R"({{"ph":"M","name":"process_sort_index","pid":{0},"args":{{"sort_index":{0}}}}})",
                     rank, json_string(name));
}

std::string box(const Plan& plan, std::size_t rank, OperationId id, const TimeSpan& span) {
  const Operation& operation = plan.schedule.operations[id];
  return fmt::format(R"({{"ph":"X","name":{},"cat":{},"pid":{},"tid":{},)"
                     R"("ts":{:.3f},"dur":{:.3f},"args":{{"operation":{},"micro_batch":{}}}}})",
                     json_string(title(plan, id)), json_string(name(operation.verb)), rank,
                     static_cast<int>(operation.lane), span.start_seconds * 1e6, span.seconds() * 1e6, id,
                     operation.micro_batch);
}

}  // namespace

void write_trace(std::ostream& out, const Plan& plan, const Timeline& timeline) {
  write_trace(out, {{&plan, timeline, "rank 0"}});
}

void write_trace(std::ostream& out, const std::vector<RankTrace>& ranks) {
  out << "{\"traceEvents\":[\n";
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const Plan& plan = *ranks[rank].plan;
    const auto& spans = ranks[rank].timeline.operations;
    const double begin = ranks[rank].timeline.begin_seconds;
    out << (rank == 0 ? "" : ",\n") << process(rank, ranks[rank].name);
    for (int lane = 0; lane < kLaneCount; ++lane) {
      const auto is_on_lane = [lane](const Operation& operation) { return static_cast<int>(operation.lane) == lane; };
      if (std::ranges::any_of(plan.schedule.operations, is_on_lane))
        out << ",\n" << track(rank, static_cast<Lane>(lane));
    }
    for (std::size_t id = 0; id < spans.size(); ++id) {
      // A release takes no time, so it needs no box.
      if (info(plan.schedule.operations[id].verb).actor == Actor::kNone) continue;
      const TimeSpan span = {begin + spans[id].start_seconds, begin + spans[id].end_seconds};
      out << ",\n" << box(plan, rank, static_cast<OperationId>(id), span);
    }
  }
  out << "\n],\"displayTimeUnit\":\"ms\"}\n";
}

}  // namespace aliquot
