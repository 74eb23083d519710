// Tests the parser of ALIQUOT_FAULT with valid and invalid values, and the effects of the faults.
#include "kernels/system/injected_fault.h"

#include <array>
#include <chrono>
#include <gtest/gtest.h>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

const std::array kPoints = {FaultPoint{"gather"},
                            FaultPoint{"backward", {FaultKind::kNan}},
                            FaultPoint{"reduce", {FaultKind::kNan}},
                            FaultPoint{"update", {FaultKind::kFlip}},
                            FaultPoint{"publish", {FaultKind::kFlip}},
                            FaultPoint{"copy-in"}};

InjectedFault parsed(std::string_view text) { return parse_injected_fault(text, kPoints); }

std::string parse_error(std::string_view text) {
  try {
    parsed(text);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(InjectedFault, ParsesEveryField) {
  const InjectedFault fault = parsed("rank=2,step=30,op=copy-in,unit=h.1,kind=slow:2.5s");
  EXPECT_EQ(fault.rank, 2);
  EXPECT_EQ(fault.step, 30);
  EXPECT_EQ(fault.operation, "copy-in");
  EXPECT_EQ(fault.unit, "h.1");
  EXPECT_EQ(fault.kind, FaultKind::kSlow);
  EXPECT_EQ(fault.seconds, 2.5);
}

TEST(InjectedFault, DefaultsToTheFirstRankAndStep) {
  const InjectedFault fault = parsed("kind=enospc,op=save");
  EXPECT_EQ(fault.rank, 0);
  EXPECT_EQ(fault.step, 1);
  EXPECT_EQ(fault.unit, "");
  EXPECT_EQ(fault.kind, FaultKind::kFullDisk);
}

TEST(InjectedFault, RejectsInvalidTextWithReasonAndExample) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "'' is not rank=NUMBER"},
      {"rank=1", "kind is missing"},
      {"op=reduce", "kind is missing"},
      {"kind=kill", "op '' is not one of gather, "},
      {"op=reduce,kind=kill,", "'' is not rank=NUMBER"},
      {"op=redcue,kind=kill", "op 'redcue' is not one of gather, backward, reduce, update, publish, copy-in, save"},
      {"op=reduce,kind=die", "kind 'die' is not one of"},
      {"op=reduce,kind=kill:2s", "kind=slow requires a time in seconds"},
      {"op=reduce,kind=slow", "kind=slow requires a time in seconds"},
      {"op=reduce,kind=slow:2", "kind=slow requires a time in seconds"},
      {"op=reduce,kind=slow:s", "slow '' is not a number in [0, 1000000000)"},
      {"op=reduce,kind=slow:nans", "slow 'nan' is not a number in [0, 1000000000)"},
      {"op=reduce,kind=slow:-1s", "slow '-1' is not a number in [0, 1000000000)"},
      {"rank=-1,op=reduce,kind=kill", "rank '-1' is not a number in [0, 1000000000)"},
      {"rank=1x,op=reduce,kind=kill", "rank '1x' is not a number in [0, 1000000000)"},
      {"step=0,op=reduce,kind=kill", "step '0' is not a number in [1, 1000000000)"},
      {"unit=,op=reduce,kind=kill", "'unit=' is not rank=NUMBER"},
      {"op=gather,kind=nan", "kind=nan requires op=backward or op=reduce"},
      {"op=reduce,kind=enospc", "kind=enospc requires op=save"},
      {"rank=1,rank=1,op=reduce,kind=kill", "rank occurs twice"},
      {"step=1,op=reduce,step=2,kind=kill", "step occurs twice"},
      {"op=reduce,op=gather,kind=kill", "op occurs twice"},
      {"unit=h.1,op=reduce,unit=h.2,kind=kill", "unit occurs twice"},
      {"kind=kill,op=reduce,kind=throw", "kind occurs twice"},
      {"op=save,kind=flip", "kind=flip requires op=update or op=publish"},
  };
  for (const auto& [text, expected] : cases) {
    const std::string message = parse_error(text);
    EXPECT_NE(message.find(expected), std::string::npos) << text << ": " << message;
    EXPECT_NE(message.find("write it as rank=1,step=3,op=reduce,kind=kill."), std::string::npos) << message;
  }
}

TEST(InjectedFault, ThrowsOrSleepsAsConfigured) {
  EXPECT_NO_THROW(inject_fault(parsed("op=reduce,kind=nan"), "here"));
  try {
    inject_fault(parsed("rank=3,op=reduce,kind=throw"), "reduce h.1 (step 1)");
    FAIL() << "kind=throw did not throw";
  } catch (const FaultError& error) {
    EXPECT_STREQ(error.what(), "ALIQUOT_FAULT made rank 3 fail in reduce h.1 (step 1)");
  }
  const auto began = std::chrono::steady_clock::now();
  inject_fault(parsed("op=reduce,kind=slow:0.05s"), "here");
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(50));
}

TEST(InjectedFaultDeathTest, KindKillKillsTheProcess) {
  EXPECT_EXIT(inject_fault(parsed("op=reduce,kind=kill"), "here"), testing::KilledBySignal(9), "");
}

}  // namespace
}  // namespace aliquot
