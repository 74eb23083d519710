#include "engine/trace.h"

#include <fmt/format.h>

namespace aliquot {
namespace {

std::string quoted(std::string_view text) {
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

std::string track(Lane lane) {
  return fmt::format(R"({{"ph":"M","name":"thread_name","pid":0,"tid":{},"args":{{"name":{}}}}})",
                     static_cast<int>(lane), quoted(name(lane)));
}

std::string box(const Plan& plan, OperationId id, const TimeSpan& span) {
  const Operation& operation = plan.schedule.operations[id];
  return fmt::format(
      R"({{"ph":"X","name":{},"cat":{},"pid":0,"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"operation":{},"micro_batch":{}}}}})",
      quoted(title(plan, id)), quoted(name(operation.verb)), static_cast<int>(operation.lane), span.start_seconds * 1e6,
      span.seconds() * 1e6, id, operation.micro_batch);
}

}  // namespace

void write_trace(std::ostream& out, const Plan& plan, const Timeline& timeline) {
  out << "{\"traceEvents\":[\n";
  for (int lane = 0; lane < kLaneCount; ++lane) out << (lane == 0 ? "" : ",\n") << track(static_cast<Lane>(lane));
  for (std::size_t id = 0; id < timeline.operations.size(); ++id) {
    // A release takes no time: there is nothing to see.
    if (plan.schedule.operations[id].verb == Verb::kRelease) continue;
    out << ",\n" << box(plan, static_cast<OperationId>(id), timeline.operations[id]);
  }
  out << "\n],\"displayTimeUnit\":\"ms\"}\n";
}

}  // namespace aliquot
