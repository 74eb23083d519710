#include "kernels/system/machine_memory.h"

#include <gtest/gtest.h>
#include <sys/sysinfo.h>

namespace aliquot::test {
namespace {

TEST(MachineMemory, IsPositiveAndAtMostTheTotalOfSysinfo) {
  struct sysinfo info = {};
  ASSERT_EQ(sysinfo(&info), 0);
  const int64_t total = static_cast<int64_t>(info.totalram) * info.mem_unit;
  const int64_t swap = static_cast<int64_t>(info.totalswap) * info.mem_unit;
  EXPECT_GT(machine_memory_bytes(), 0);
  EXPECT_LE(machine_memory_bytes(), total + 4096);  // less if a control group has a limit
  EXPECT_GT(available_memory_bytes(), 0);
  EXPECT_LE(available_memory_bytes(), total + swap);
}

}  // namespace
}  // namespace aliquot::test
