#pragma once
// Binds the thread of a test to one core.

#include <algorithm>
#include <sched.h>
#include <vector>

#include "sharding/cores.h"

namespace aliquot::test {

/// Binds the calling thread to one of its cores while the object exists.
class OneCore {
 public:
  OneCore() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    const std::vector<bool> cores = allowed_cores();
    CPU_SET(std::ranges::find(cores, true) - cores.begin(), &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;
  ~OneCore() { sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_{};
};

}  // namespace aliquot::test
