// What ALIQUOT_FAULT may say, and what is said of the rest.
#include "kernels/system/injected_fault.h"

#include <array>
#include <chrono>
#include <gtest/gtest.h>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr std::array kPoints = {FaultPoint{"gather"},
                                FaultPoint{"backward", FaultKind::kNan},
                                FaultPoint{"reduce", FaultKind::kNan},
                                FaultPoint{"update", FaultKind::kFlip},
                                FaultPoint{"publish", FaultKind::kFlip},
                                FaultPoint{"copy-in"}};

InjectedFault parsed(std::string_view text) { return parse_injected_fault(text, kPoints); }

std::string refused(std::string_view text) {
  try {
    parsed(text);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "taken";
}

TEST(InjectedFault, SaysWhoWhenWhereAndWhat) {
  const InjectedFault fault = parsed("rank=2,step=30,op=copy-in,unit=h.1,kind=slow:2.5s");
  EXPECT_EQ(fault.rank, 2);
  EXPECT_EQ(fault.step, 30);
  EXPECT_EQ(fault.operation, "copy-in");
  EXPECT_EQ(fault.unit, "h.1");
  EXPECT_EQ(fault.kind, FaultKind::kSlow);
  EXPECT_EQ(fault.seconds, 2.5);
}

TEST(InjectedFault, IsOfTheFirstRankAndStepUnlessTold) {
  const InjectedFault fault = parsed("kind=enospc,op=save");
  EXPECT_EQ(fault.rank, 0);
  EXPECT_EQ(fault.step, 1);
  EXPECT_EQ(fault.unit, "");
  EXPECT_EQ(fault.kind, FaultKind::kFullDisk);
}

TEST(InjectedFault, RefusesTheRestWithASentence) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "is none of rank"},
      {"rank=1", "no kind"},
      {"op=reduce", "no kind"},
      {"kind=kill", "op is one of gather, "},
      {"op=reduce,kind=kill,", "'' is none of"},
      {"op=redcue,kind=kill", "op is one of gather, backward, reduce, update, publish, copy-in, save, not 'redcue'"},
      {"op=reduce,kind=die", "not 'die'"},
      {"op=reduce,kind=kill:2s", "slow alone has seconds"},
      {"op=reduce,kind=slow", "slow alone has seconds"},
      {"op=reduce,kind=slow:2", "slow alone has seconds"},
      {"op=reduce,kind=slow:s", "slow is a number from 0"},
      {"op=reduce,kind=slow:nans", "slow is a number from 0"},
      {"op=reduce,kind=slow:-1s", "slow is a number from 0"},
      {"rank=-1,op=reduce,kind=kill", "rank is a number from 0"},
      {"rank=1x,op=reduce,kind=kill", "rank is a number from 0"},
      {"step=0,op=reduce,kind=kill", "step is a number from 1"},
      {"unit=,op=reduce,kind=kill", "'unit=' is none of"},
      {"op=gather,kind=nan", "nan is for op=backward and op=reduce"},
      {"op=reduce,kind=enospc", "enospc is for op=save"},
      {"rank=1,rank=1,op=reduce,kind=kill", "rank is said twice"},
      {"step=1,op=reduce,step=2,kind=kill", "step is said twice"},
      {"op=reduce,op=gather,kind=kill", "op is said twice"},
      {"unit=h.1,op=reduce,unit=h.2,kind=kill", "unit is said twice"},
      {"kind=kill,op=reduce,kind=throw", "kind is said twice"},
      {"op=save,kind=flip", "flip is for op=update and op=publish"},
  };
  for (const auto& [text, why] : cases) {
    const std::string sentence = refused(text);
    EXPECT_NE(sentence.find(why), std::string::npos) << text << ": " << sentence;
    EXPECT_NE(sentence.find("write it as rank=1,step=3,op=reduce,kind=kill."), std::string::npos) << sentence;
  }
}

TEST(InjectedFault, StrikesAsItIsAsked) {
  EXPECT_NO_THROW(inject_fault(parsed("op=reduce,kind=nan"), "here"));
  try {
    inject_fault(parsed("rank=3,op=reduce,kind=throw"), "reduce h.1 (step 1)");
    FAIL() << "nothing was thrown";
  } catch (const FaultError& error) {
    EXPECT_STREQ(error.what(), "ALIQUOT_FAULT asked rank 3 to fail in reduce h.1 (step 1)");
  }
  const auto began = std::chrono::steady_clock::now();
  inject_fault(parsed("op=reduce,kind=slow:0.05s"), "here");
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(50));
}

TEST(InjectedFaultDeathTest, KillsTheProcess) {
  EXPECT_EXIT(inject_fault(parsed("op=reduce,kind=kill"), "here"), testing::KilledBySignal(9), "");
}

}  // namespace
}  // namespace aliquot
