// Reads the scalars of a run from a checkpoint. Invalid scalars must be rejected, because a checkpoint with a correct
// checksum may contain them.
#include "apps/train/checkpoints/resume_point.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "kernels/system/checkpoint_error.h"

namespace aliquot {
namespace {

State state_of(const Scalar& consumed) {
  State state;
  state.scalars[kSequencesConsumed] = consumed;
  return state;
}

std::string refusal(const State& state) {
  try {
    resume_point(state);
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "";
}

TEST(ResumePoint, ReadsTheScalarsOfARun) {
  State state = state_of(int64_t{640});
  EXPECT_EQ(resume_point(state).sequences_consumed, 640);
  EXPECT_FALSE(resume_point(state).loss_statistics);
  state.scalars[kLossStatisticsName] = std::vector<double>{2.5, 0.25, 40};
  const auto seen = resume_point(state).loss_statistics;
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->mean, 2.5);
  EXPECT_EQ(seen->variance, 0.25);
  EXPECT_EQ(seen->count, 40);
}

TEST(ResumePoint, RejectsInvalidCounts) {
  EXPECT_EQ(refusal(state_of(int64_t{-5})),
            "the checkpoint's sequences_consumed is -5: expected a count from 0 to 9007199254740992");
  EXPECT_NE(refusal(state_of(std::numeric_limits<int64_t>::max())), "");
  EXPECT_EQ(refusal(state_of(int64_t{1} << 53)), "");
  EXPECT_THROW(resume_point({}), UsageError);
  EXPECT_THROW(resume_point(state_of(0.5)), UsageError);
}

TEST(ResumePoint, RejectsInvalidStatistics) {
  for (const std::vector<double>& wrong : std::vector<std::vector<double>>{
           {}, {1, 2}, {std::nan(""), 1, 1}, {1, -1, 1}, {1, HUGE_VAL, 1}, {1, 1, -1}, {1, 1, 0.5}, {1, 1, 1e300}}) {
    State state = state_of(int64_t{1});
    state.scalars[kLossStatisticsName] = wrong;
    EXPECT_NE(refusal(state).find("the checkpoint's losses_seen is "), std::string::npos);
  }
}

}  // namespace
}  // namespace aliquot
