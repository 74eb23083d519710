#include "kernels/system/short_time_slice.h"

#include <cstdint>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace aliquot {
namespace {

/// The first version of the kernel's struct sched_attr. On some systems <linux/sched/types.h> conflicts with <sched.h>.
struct SchedAttr {
  uint32_t size = sizeof(SchedAttr), policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0, deadline = 0, period = 0;
};

}  // namespace

void request_short_time_slice() noexcept {
  prctl(PR_SET_TIMERSLACK, 1UL);  // the default timer slack makes each sleep 50 microseconds longer
  constexpr uint64_t kTimeSliceNanoseconds = 100'000;
  SchedAttr scheduling;
  if (syscall(SYS_sched_getattr, 0, &scheduling, sizeof(scheduling), 0) != 0 || scheduling.policy != SCHED_OTHER)
    return;
  // Since Linux 6.12, a thread with a shorter time slice is scheduled sooner. Unlike a priority, this needs no
  // privilege.
  scheduling.runtime = kTimeSliceNanoseconds;
  syscall(SYS_sched_setattr, 0, &scheduling, 0);
}

}  // namespace aliquot
