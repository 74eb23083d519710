#include "kernels/system/short_time_slice.h"

#include <cstdint>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace aliquot {
namespace {

/// The system's sched_attr in its first version; its header and the C library's <sched.h> cannot be used together everywhere.
struct SchedAttr {
  uint32_t size = sizeof(SchedAttr), policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0, deadline = 0, period = 0;
};

}  // namespace

void request_short_time_slice() noexcept {
  prctl(PR_SET_TIMERSLACK, 1UL);  // naps of microseconds are else fifty longer
  constexpr uint64_t kTimeSliceNanoseconds = 100'000;
  SchedAttr scheduling;
  if (syscall(SYS_sched_getattr, 0, &scheduling, sizeof(scheduling), 0) != 0 || scheduling.policy != SCHED_OTHER)
    return;
  // Linux 6.12 and later: who asks for shorter turns has them sooner. A priority would want permission; this wants none.
  scheduling.runtime = kTimeSliceNanoseconds;
  syscall(SYS_sched_setattr, 0, &scheduling, 0);
}

}  // namespace aliquot
