#include "apps/models/layers/work_time.h"

#include <utility>

#include "kernels/system/seconds.h"

namespace aliquot {
namespace {

struct Clock {
  WorkKind part = WorkKind::kOther;
  double since = now_seconds();
  WorkSeconds spent{};

  WorkKind switch_to(WorkKind next) {
    const double now = now_seconds();
    spent[static_cast<size_t>(part)] += now - since;
    since = now;
    return std::exchange(part, next);
  }
};

thread_local Clock thread_clock;

}  // namespace

std::string_view name(WorkKind part) {
  switch (part) {
    case WorkKind::kOther: return "other";
    case WorkKind::kProducts: return "products";
    case WorkKind::kAttention: return "attention";
    case WorkKind::kLoss: return "loss";
    case WorkKind::kElementwise: return "elementwise";
  }
  return "unknown";
}

ScopedWorkTimer::ScopedWorkTimer(WorkKind part) : before_(thread_clock.switch_to(part)) {}

ScopedWorkTimer::~ScopedWorkTimer() { thread_clock.switch_to(before_); }

WorkSeconds drain_work_seconds() {
  thread_clock.switch_to(thread_clock.part);
  return std::exchange(thread_clock.spent, {});
}

}  // namespace aliquot
