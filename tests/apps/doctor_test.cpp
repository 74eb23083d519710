// aliquot doctor: what it looks at, and that what is missing comes with what would add it.
#include <gtest/gtest.h>

#include "apps/version.h"
#include "tests/apps/command_line.h"

namespace aliquot {
namespace {

/// What stands behind the first line that begins with `what`; empty without one.
std::string line_of(const std::string& out, const std::string& what) {
  const std::string start = "\n" + what;
  const size_t at = ("\n" + out).find(start);
  if (at == std::string::npos) return {};
  const std::string line = out.substr(at, out.find('\n', at) - at);
  const size_t text = line.find_first_not_of(' ', what.size());
  return text == std::string::npos ? "" : line.substr(text);
}

TEST(Doctor, SaysWhatThisBuildAndThisMachineOffer) {
  const test::CommandResult result = test::run_aliquot({"doctor"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(line_of(result.out, "aliquot"), version());
  EXPECT_EQ(line_of(result.out, "HDF5"), hdf5_version());
  for (const char* what : {"cores", "memory", "loops", "oneDNN", "bf16", "GPU", "missing"})
    EXPECT_NE(line_of(result.out, what), "") << what << " in\n" << result.out;
  EXPECT_EQ(line_of(result.out, "CUDA").starts_with("in this build"), cuda_part().is_there) << result.out;
  const bool started = line_of(result.out, "MPI").find("MPI_THREAD_MULTIPLE") != std::string::npos;
  EXPECT_EQ(started, mpi_part().is_there) << result.out;
}

TEST(Doctor, NamesThePackageThatBringsALauncher) {
  const test::CommandResult result =
      test::run_program("/usr/bin/env", {"PATH=/nowhere", test::aliquot_program(), "doctor"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(line_of(result.out, "launcher"), "") << result.out;
  const std::string missing = line_of(result.out, "missing");
  EXPECT_NE(missing.find("apt install"), std::string::npos) << result.out;
  EXPECT_NE(missing.find("openmpi-bin"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace aliquot
