#include "apps/models/layers/parts.h"

#include <utility>

#include "kernels/system/seconds.h"

namespace aliquot {
namespace {

struct Clock {
  Part part = Part::kOther;
  double since = now_seconds();
  PartSeconds spent{};

  Part turn_to(Part next) {
    const double now = now_seconds();
    spent[static_cast<size_t>(part)] += now - since;
    since = now;
    return std::exchange(part, next);
  }
};

thread_local Clock clock_of_thread;

}  // namespace

std::string_view name(Part part) {
  switch (part) {
    case Part::kOther: return "other";
    case Part::kProducts: return "products";
    case Part::kAttention: return "attention";
    case Part::kLoss: return "loss";
    case Part::kElementwise: return "elementwise";
  }
  return "unknown";
}

TimedPart::TimedPart(Part part) : before_(clock_of_thread.turn_to(part)) {}

TimedPart::~TimedPart() { clock_of_thread.turn_to(before_); }

PartSeconds take_part_seconds() {
  clock_of_thread.turn_to(clock_of_thread.part);
  return std::exchange(clock_of_thread.spent, {});
}

}  // namespace aliquot
