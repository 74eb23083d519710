// Tests a run on threads in which one rank hangs. The other rank fails at its deadline, and then the process exits.
#include <chrono>
#include <gtest/gtest.h>

#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

TEST(Stuck, ARankThatHangsDoesNotKeepTheProcessAlive) {
  for (const std::string rank : {"0", "1"}) {
    const test::TemporaryDirectory saved;
    const auto began = std::chrono::steady_clock::now();
    const test::CommandResult result =
        test::run_program(test::aliquot_program(),
                          {"train", "--quiet", "--layers", "1", "--width", "32", "--threads", "1", "--ranks", "2",
                           "--steps", "4", "--timeout", "1", "--checkpoint-dir", saved.path().string()},
                          {"ALIQUOT_FAULT=rank=" + rank + ",step=2,op=update,kind=slow:600s"});
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - began;
    EXPECT_EQ(result.code, 3) << result.err;
    EXPECT_NE(result.err.find("rank " + rank + " never arrived"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("rank " + rank + " did not return after another rank failed: ending the process."),
              std::string::npos)
        << result.err;
    EXPECT_LT(elapsed.count(), 60);
    const test::CommandResult explained = test::run_aliquot({"doctor", "--explain", saved.path().string()});
    EXPECT_EQ(explained.out.rfind("2 of 2 ranks wrote a flight record", 0), 0u) << explained.out << explained.err;
    EXPECT_NE(explained.out.find("Rank " + rank), std::string::npos) << explained.out;
  }
}

}  // namespace
}  // namespace aliquot
