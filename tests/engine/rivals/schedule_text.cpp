#include "tests/engine/rivals/schedule_text.h"

#include <fmt/format.h>
#include <sstream>
#include <stdexcept>

namespace aliquot::testing {
namespace {

std::string line_of(const Operation& operation) {
  std::string line =
      fmt::format("operation {} {} {} {} {} {} {} {}", name(operation.verb), static_cast<int>(operation.group),
                  static_cast<int>(operation.lane), operation.operand, operation.micro_batch,
                  operation.peer_offset_bytes, operation.collective, operation.after.size());
  for (const Wait& wait : operation.after)
    line += fmt::format(" {} {} {}", wait.operation, static_cast<int>(wait.of), wait.of_previous_step ? 1 : 0);
  return line;
}

std::string line_of(const PlannedBuffer& b) {
  return fmt::format("buffer {} {} {} {} {} {} {} {} {} {} {} {}", static_cast<int>(b.role),
                     static_cast<int>(b.category), b.flat, b.micro_batch, static_cast<int>(b.group),
                     static_cast<int>(b.space), b.booked ? 1 : 0, b.always ? 1 : 0, b.size_bytes, b.offset_bytes,
                     b.first, b.last);
}

/// Reads values that spaces separate.
class Reader {
 public:
  explicit Reader(const std::string& line) : words_(line) {}

  template <typename T>
  void read(T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      words_ >> value;
    } else {
      int64_t number = 0;
      words_ >> number;
      value = static_cast<T>(number);
    }
    if (!words_) throw std::runtime_error("not the text of a schedule: " + words_.str());
  }
  template <typename... T>
  void read_all(T&... values) {
    (read(values), ...);
  }

 private:
  std::istringstream words_;
};

Verb verb_of(const std::string& word) {
  for (const VerbInfo& row : kVerbTable) {
    if (row.name == word) return row.verb;
  }
  throw std::runtime_error("no verb is named " + word);
}

Operation operation_of(Reader& line) {
  Operation operation{};
  std::string verb;
  std::size_t waits = 0;
  line.read_all(verb, operation.group, operation.lane, operation.operand, operation.micro_batch,
                operation.peer_offset_bytes, operation.collective, waits);
  operation.verb = verb_of(verb);
  operation.after.resize(waits);
  for (Wait& wait : operation.after) line.read_all(wait.operation, wait.of, wait.of_previous_step);
  return operation;
}

PlannedBuffer buffer_of(Reader& line) {
  PlannedBuffer b{};
  line.read_all(b.role, b.category, b.flat, b.micro_batch, b.group, b.space, b.booked, b.always, b.size_bytes,
                b.offset_bytes, b.first, b.last);
  return b;
}

}  // namespace

std::string full_text(const Schedule& schedule) {
  std::string text = "schedule";
  for (const int64_t bytes : schedule.space_bytes) text += fmt::format(" {}", bytes);
  text += fmt::format(" {} {:d} {:d} {:d} {:d} {} {} {}\n", schedule.stream_bytes, schedule.view,
                      schedule.accumulate_into_shard, schedule.reduces_in_place, schedule.sums_in_levels,
                      schedule.zero_stage, schedule.micro_batch_count, schedule.micro_batches_in_flight);
  for (const Operation& operation : schedule.operations) text += line_of(operation) + "\n";
  for (const PlannedBuffer& buffer : schedule.buffers) text += line_of(buffer) + "\n";
  return text;
}

Schedule schedule_of(const std::string& text) {
  Schedule schedule;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    Reader reader(line);
    std::string kind;
    reader.read(kind);
    if (kind == "operation") {
      schedule.operations.push_back(operation_of(reader));
    } else if (kind == "buffer") {
      schedule.buffers.push_back(buffer_of(reader));
    } else if (kind == "schedule") {
      for (int64_t& bytes : schedule.space_bytes) reader.read(bytes);
      reader.read_all(schedule.stream_bytes, schedule.view, schedule.accumulate_into_shard, schedule.reduces_in_place,
                      schedule.sums_in_levels, schedule.zero_stage, schedule.micro_batch_count,
                      schedule.micro_batches_in_flight);
    } else {
      throw std::runtime_error("a line of a schedule begins with " + kind);
    }
  }
  return schedule;
}

}  // namespace aliquot::testing
