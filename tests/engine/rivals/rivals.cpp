#include "tests/engine/rivals/rivals.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "tests/engine/rivals/schedule_text.h"

namespace aliquot::testing {
namespace {

void print_and_parse(std::vector<Plan>& stages) {
  for (Plan& plan : stages) {
    const std::string text = full_text(plan.schedule);
    plan.schedule = schedule_of(text);
    if (full_text(plan.schedule) != text) throw std::runtime_error("a parsed schedule prints another text");
  }
}

/// Operations of one lane run in order, so plans list no waits between them.
void remove_waits_in_lane(Schedule& schedule) {
  for (Operation& operation : schedule.operations) {
    std::erase_if(operation.after, [&](const Wait& wait) {
      return wait.of == GroupId::kRank && schedule.operations[wait.operation].lane == operation.lane;
    });
  }
}

void add_wait(Schedule& schedule, OperationId of, OperationId before, bool of_previous_step) {
  const Wait wait{before, GroupId::kRank, of_previous_step};
  std::vector<Wait>& after = schedule.operations[of].after;
  if (std::ranges::find(after, wait) == after.end()) after.push_back(wait);
}

void run_one_after_another(std::vector<Plan>& stages) {
  for (Plan& plan : stages) {
    Schedule& schedule = plan.schedule;
    OperationId first = -1, before = -1;
    for (OperationId id = 0; id < static_cast<OperationId>(schedule.operations.size()); ++id) {
      if (is_transfer(schedule.operations[id].verb)) continue;
      if (before >= 0) add_wait(schedule, id, before, false);
      if (first < 0) first = id;
      before = id;
    }
    if (before > first) add_wait(schedule, first, before, true);
    remove_waits_in_lane(schedule);
  }
}

void run_on_one_lane(std::vector<Plan>& stages) {
  for (Plan& plan : stages) {
    for (Operation& operation : plan.schedule.operations) {
      if (operation.lane == Lane::kGather || operation.lane == Lane::kReduce) operation.lane = Lane::kCompute;
    }
    remove_waits_in_lane(plan.schedule);
  }
}

/// Places the buffers of the arena that are not persistent anew. `place` receives them and the first free offset, sets
/// their offsets, and returns the end. Sizes are rounded up to the alignment that all their offsets have.
template <typename Place>
void place_anew(std::vector<Plan>& stages, const Place& place) {
  for (Plan& plan : stages) {
    std::vector<PlannedBuffer*> transient;
    int64_t begin = plan.schedule.bytes(Space::kArena), alignment = kPlacePageBytes;
    for (PlannedBuffer& buffer : plan.schedule.buffers) {
      if (buffer.always || buffer.space != Space::kArena) continue;
      transient.push_back(&buffer);
      begin = std::min(begin, buffer.offset_bytes);
    }
    for (const PlannedBuffer* buffer : transient) {
      while ((buffer->offset_bytes - begin) % alignment != 0) alignment /= 2;
    }
    const auto aligned = [&](const PlannedBuffer& buffer) {
      return (buffer.size_bytes + alignment - 1) / alignment * alignment;
    };
    plan.schedule.bytes(Space::kArena) = place(transient, begin, aligned);
  }
  link_stages(stages);
}

void mirror(std::vector<Plan>& stages) {
  place_anew(stages, [](auto& transient, int64_t begin, const auto& aligned) {
    int64_t end = begin;
    for (const PlannedBuffer* buffer : transient) end = std::max(end, buffer->offset_bytes + aligned(*buffer));
    for (PlannedBuffer* buffer : transient)
      buffer->offset_bytes = begin + end - (buffer->offset_bytes + aligned(*buffer));
    return end;
  });
}

void place_apart(std::vector<Plan>& stages) {
  place_anew(stages, [](auto& transient, int64_t begin, const auto& aligned) {
    int64_t end = begin;
    for (PlannedBuffer* buffer : transient) {
      buffer->offset_bytes = end;
      end += aligned(*buffer);
    }
    return end;
  });
}

constexpr std::array kRivals{Rival{"printed and parsed", print_and_parse},
                             Rival{"one after another", run_one_after_another}, Rival{"one lane", run_on_one_lane},
                             Rival{"mirrored", mirror}, Rival{"apart", place_apart}};

}  // namespace

std::span<const Rival> all_rivals() { return kRivals; }

}  // namespace aliquot::testing
