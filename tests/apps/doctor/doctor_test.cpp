// Tests the report of aliquot doctor: the features of the build and the machine, and how to install missing ones.
#include <filesystem>
#include <gtest/gtest.h>

#include "apps/models/cuda/backend_cuda.h"
#include "apps/version.h"
#include "kernels/device/device.h"
#include "kernels/system/error.h"
#include "optim/muon/orthogonalize.h"
#include "optim/update/update_tables.h"
#include "sharding/comm/direct_communicator.h"
#include "sharding/nccl/communicator_nccl.h"
#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

/// Returns the rest of the first line that begins with `what`, or "" if no line begins with it.
std::string line_of(const std::string& out, const std::string& what) {
  const std::string start = "\n" + what;
  const size_t at = ("\n" + out).find(start);
  if (at == std::string::npos) return {};
  const std::string line = out.substr(at, out.find('\n', at) - at);
  const size_t text = line.find_first_not_of(' ', what.size());
  return text == std::string::npos ? "" : line.substr(text);
}

TEST(Doctor, ReportsTheBuildAndTheMachine) {
  const test::CommandResult result = test::run_aliquot({"doctor"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(line_of(result.out, "aliquot"), version());
  EXPECT_EQ(line_of(result.out, "HDF5"), hdf5_version());
  for (const char* what : {"cores", "memory", "loops", "bf16", "GPU", "missing"})
    EXPECT_NE(line_of(result.out, what), "") << what << " in\n" << result.out;
  EXPECT_EQ(line_of(result.out, "CUDA").starts_with("in this build"), cuda_part().is_available) << result.out;
  const bool started = line_of(result.out, "MPI").find("MPI_THREAD_MULTIPLE") != std::string::npos;
  EXPECT_EQ(started, mpi_part().is_available) << result.out;
}

TEST(Doctor, NamesThePackageOfAMissingLauncher) {
  const test::CommandResult result =
      test::run_program("/usr/bin/env", {"PATH=/nowhere", test::aliquot_program(), "doctor"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(line_of(result.out, "launcher"), "") << result.out;
  const std::string missing = line_of(result.out, "missing");
  EXPECT_NE(missing.find("apt install"), std::string::npos) << result.out;
  EXPECT_NE(missing.find("openmpi-bin"), std::string::npos) << result.out;
}

TEST(Doctor, RejectsUnknownOptionsAndExistingFiles) {
  const test::CommandResult unknown = test::run_aliquot({"doctor", "more"});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_NE(unknown.err.find("unexpected argument 'more' of doctor"), std::string::npos) << unknown.err;
  const test::CommandResult existing = test::run_aliquot({"doctor", "--measure", "/proc/self/status"});
  EXPECT_EQ(existing.code, 1);
  EXPECT_NE(existing.err.find("already exists: remove it"), std::string::npos) << existing.err;
}

/// The measurement takes several seconds, so the file is checked before it.
TEST(Doctor, FindsAnUnwritableFileBeforeItMeasures) {
  for (const char* file : {"/nowhere/machine.json", "/dev/null/machine.json", "/proc/machine.json"}) {
    const test::CommandResult result = test::run_aliquot({"doctor", "--measure", file});
    EXPECT_EQ(result.code, 1);
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err.find(std::string("--measure ") + file + ": the file cannot be written: "), std::string::npos)
        << result.err;
  }
}

/// The check of the directory must not use a name that a file of the user can have.
TEST(Doctor, LeavesOtherFilesOfTheDirectoryAsTheyAre) {
  const test::TemporaryDirectory folder;
  const std::string file = (folder.path() / "machine.json").string(), other = file + ".$$";
  // The shell and the command have the same process number.
  const std::string script = "echo 1 > " + other + "; echo " + other + "; exec " + test::aliquot_program() +
                             " doctor --device cuda --measure " + file;
  const test::CommandResult result = test::run_program("/bin/sh", {"-c", script});
  EXPECT_EQ(result.code, std::filesystem::exists(file) ? 0 : 2) << result.err;  // 2: there is no GPU to measure
  const std::string written = result.out.substr(0, result.out.find('\n'));
  EXPECT_TRUE(std::filesystem::exists(written)) << written;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    EXPECT_TRUE(entry.path() == written || entry.path() == file) << entry.path();
}

TEST(WithoutCuda, FactoriesThrowUnavailableError) {
  if (cuda_part().is_available) GTEST_SKIP() << "this build includes CUDA support";
  const auto host = make_host_device(1);
  EXPECT_THROW(make_cuda_device(0), UnavailableError);
  EXPECT_THROW(wrap_cuda_stream(*host, Lane::kCompute, nullptr), UnavailableError);
  EXPECT_THROW(cuda_direct_transport(1), UnavailableError);
  EXPECT_THROW(make_nccl_communicator(*host, {}), UnavailableError);
  EXPECT_THROW(cuda_update_kernels(), UnavailableError);
  EXPECT_THROW(make_cuda_orthogonalizer(*host, DType::kFloat32), UnavailableError);
  EXPECT_THROW(make_cuda_backend(*host), UnavailableError);
}

}  // namespace
}  // namespace aliquot
