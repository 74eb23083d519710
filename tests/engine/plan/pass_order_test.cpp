// Tests of pass orders in pipelines: published examples, text form, check, and the number of micro-batches in flight.
#include "engine/plan/pass_order.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/usage_error_message.h"

namespace aliquot {
namespace {

// Derived by hand from figure 2 of the GPipe paper and figure 4 of the PipeDream-2BW and Megatron-LM papers.
constexpr const char* kGpipe4x8 =
    "0F0,0F1,0F2,0F3,0F4,0F5,0F6,0F7,0B0,0B1,0B2,0B3,0B4,0B5,0B6,0B7\n"
    "1F0,1F1,1F2,1F3,1F4,1F5,1F6,1F7,1B0,1B1,1B2,1B3,1B4,1B5,1B6,1B7\n"
    "2F0,2F1,2F2,2F3,2F4,2F5,2F6,2F7,2B0,2B1,2B2,2B3,2B4,2B5,2B6,2B7\n"
    "3F0,3F1,3F2,3F3,3F4,3F5,3F6,3F7,3B0,3B1,3B2,3B3,3B4,3B5,3B6,3B7\n";
constexpr const char* k1F1B4x8 =
    "0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0F6,0B3,0F7,0B4,0B5,0B6,0B7\n"
    "1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1F6,1B4,1F7,1B5,1B6,1B7\n"
    "2F0,2F1,2B0,2F2,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2F6,2B5,2F7,2B6,2B7\n"
    "3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,3F5,3B5,3F6,3B6,3F7,3B7\n";

// Two virtual stages per rank; derived by hand from figure 4 of the Megatron-LM paper (the lower half).
constexpr const char* kInterleaved4x8 =
    "0F0,0F1,0F2,0F3,4F0,4F1,4F2,4F3,0F4,0F5,0F6,4B0,0F7,4B1,4F4,4B2,4F5,4B3,4F6,0B0,4F7,0B1,0B2,0B3,4B4,4B5,4B6,4B7,"
    "0B4,0B5,0B6,0B7\n"
    "1F0,1F1,1F2,1F3,5F0,5F1,5F2,5F3,1F4,5B0,1F5,5B1,1F6,5B2,1F7,5B3,5F4,1B0,5F5,1B1,5F6,1B2,5F7,1B3,5B4,5B5,5B6,5B7,"
    "1B4,1B5,1B6,1B7\n"
    "2F0,2F1,2F2,2F3,6F0,6F1,6F2,6B0,6F3,6B1,2F4,6B2,2F5,6B3,2F6,2B0,2F7,2B1,6F4,2B2,6F5,2B3,6F6,6B4,6F7,6B5,6B6,6B7,"
    "2B4,2B5,2B6,2B7\n"
    "3F0,3F1,3F2,3F3,7F0,7B0,7F1,7B1,7F2,7B2,7F3,7B3,3F4,3B0,3F5,3B1,3F6,3B2,3F7,3B3,7F4,7B4,7F5,7B5,7F6,7B6,7F7,7B7,"
    "3B4,3B5,3B6,3B7\n";

// ZB-H1; derived by hand from figure 3 of the zero-bubble paper (the upper half).
constexpr const char* kZeroBubble4x8 =
    "0F0,0F1,0F2,0F3,0I0,0W0,0F4,0I1,0W1,0F5,0I2,0W2,0F6,0I3,0W3,0F7,0I4,0W4,0I5,0W5,0I6,0W6,0I7,0W7\n"
    "1F0,1F1,1F2,1I0,1F3,1I1,1W0,1F4,1I2,1W1,1F5,1I3,1W2,1F6,1I4,1W3,1F7,1I5,1W4,1I6,1W5,1I7,1W6,1W7\n"
    "2F0,2F1,2I0,2F2,2I1,2F3,2I2,2W0,2F4,2I3,2W1,2F5,2I4,2W2,2F6,2I5,2W3,2F7,2I6,2W4,2I7,2W5,2W6,2W7\n"
    "3F0,3I0,3F1,3I1,3F2,3I2,3F3,3I3,3W0,3F4,3I4,3W1,3F5,3I5,3W2,3F6,3I6,3W3,3F7,3I7,3W4,3W5,3W6,3W7\n";

std::string refusal(std::string_view lines, const PipelineShape& shape) {
  return test::usage_error_message([&] { check(parse_pass_order(lines), shape); });
}

TEST(PassOrder, EqualsThePublishedFigures) {
  EXPECT_EQ(text(pass_order(PipelineSchedule::kGpipe, 4, 8)), kGpipe4x8);
  EXPECT_EQ(text(pass_order(PipelineSchedule::k1F1B, 4, 8)), k1F1B4x8);
  EXPECT_EQ(text(pass_order(PipelineSchedule::kInterleaved, 4, 8, 2)), kInterleaved4x8);
  EXPECT_EQ(text(pass_order(PipelineSchedule::kZeroBubble, 4, 8)), kZeroBubble4x8);
}

/// Returns when the last pass ends, if a forward pass and each part of a backward pass take 1 unit of time. The passes
/// of tied ends, those of virtual stage 0, take none.
int duration(const PassOrder& order, bool tied_ends = false) {
  const int stages = static_cast<int>(order.size()) + (tied_ends ? 1 : 0);
  std::map<std::tuple<PassKind, int, int>, int> ends;
  std::vector<size_t> next(order.size(), 0);
  std::vector<int> now(order.size(), 0);
  for (bool progressed = true; progressed;) {
    progressed = false;
    for (size_t rank = 0; rank < order.size(); ++rank) {
      for (; next[rank] < order[rank].size(); ++next[rank]) {
        const auto [stage, pass, m] = order[rank][next[rank]];
        const bool whole = pass == PassKind::kBackward, for_input = whole || pass == PassKind::kBackwardInput;
        std::optional<std::tuple<PassKind, int, int>> input;
        if (pass == PassKind::kForward && stage > 0) input = {pass, stage - 1, m};
        if (for_input && stage + 1 < stages) input = {PassKind::kBackwardInput, stage + 1, m};
        if (input && !ends.contains(*input)) break;
        const int takes = tied_ends && stage == 0 ? 0 : whole ? 2 : 1;
        now[rank] = std::max(now[rank], input ? ends.at(*input) : 0) + takes;
        ends[{for_input ? PassKind::kBackwardInput : pass, stage, m}] = now[rank];
        progressed = true;
      }
    }
  }
  return *std::ranges::max_element(now);
}

/// 1F1B takes 3 (m + p - 1) units of time. ZB-H1 takes 3 m + p - 1, so its bubble is a third of that of 1F1B.
TEST(PassOrder, ZeroBubbleHasAThirdOfTheBubble) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (int m = 1; m <= 20; ++m) {
      const PassOrder order = pass_order(PipelineSchedule::kZeroBubble, ranks, m);
      EXPECT_NO_THROW(check(order, {ranks, m}));
      for (const auto& actions : order) EXPECT_LE(max_in_flight(actions), std::min(m, ranks));
      if (m >= ranks) {
        EXPECT_EQ(duration(order), 3 * m + ranks - 1) << ranks << " ranks, " << m << " micro-batches";
      } else {
        EXPECT_LE(duration(order), 3 * (m + ranks - 1)) << ranks << " ranks, " << m << " micro-batches";
      }
    }
  }
}

TEST(PassOrder, PartsAreJoinedWhereNoRankWaitsForTheFirst) {
  const auto joined = [](std::string_view lines) { return text(with_whole_backwards(parse_pass_order(lines))); };
  EXPECT_EQ(joined("0F0,0I0,0W0\n1F0,1I0,1W0\n"), "0F0,0B0\n1F0,1I0,1W0\n");
  EXPECT_EQ(joined("0F0,0F1,0I0,0I1,0W0,0W1\n"), "0F0,0F1,0I0,0I1,0W0,0W1\n");
}

/// The passes of tied ends take no time here. They must not delay the other passes by more than one pass per step.
TEST(PassOrder, TiedEndsKeepTheGainOfZeroBubble) {
  for (const int ranks : {2, 3, 4, 8}) {
    for (const int m : {ranks, 2 * ranks, 4 * ranks}) {
      const auto tied = [&](PipelineSchedule schedule) {
        return duration(with_tied_ends(with_whole_backwards(pass_order(schedule, ranks, m)), false), true);
      };
      EXPECT_LE(tied(PipelineSchedule::kZeroBubble), 3 * m + ranks) << ranks << " ranks, " << m << " micro-batches";
      EXPECT_LE(tied(PipelineSchedule::k1F1B), 3 * (m + ranks - 1) + 1) << ranks << " ranks, " << m;
    }
  }
}

TEST(PassOrder, OneRankAlternatesOrSeparatesPasses) {
  EXPECT_EQ(text(pass_order(PipelineSchedule::kGpipe, 1, 2)), "0F0,0F1,0B0,0B1\n");
  EXPECT_EQ(text(pass_order(PipelineSchedule::k1F1B, 1, 2)), "0F0,0B0,0F1,0B1\n");
}

TEST(PassOrder, EveryScheduleIsValidAndBoundsMicroBatchesInFlight) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (int m = 1; m <= 20; ++m) {
      const PassOrder gpipe = pass_order(PipelineSchedule::kGpipe, ranks, m);
      const PassOrder one = pass_order(PipelineSchedule::k1F1B, ranks, m);
      EXPECT_NO_THROW(check(gpipe, {ranks, m}));
      EXPECT_NO_THROW(check(one, {ranks, m}));
      for (int r = 0; r < ranks; ++r) {
        EXPECT_EQ(max_in_flight(gpipe[static_cast<size_t>(r)]), m);
        EXPECT_EQ(max_in_flight(one[static_cast<size_t>(r)]), std::min(m, ranks - r));
      }
    }
  }
}

/// The number of micro-batches need not be a multiple of `ranks`.
TEST(PassOrder, InterleavedIsValidForAnyNumberOfMicroBatches) {
  for (int ranks = 2; ranks <= 8; ++ranks) {
    for (int v = 2; v <= 4; ++v) {
      for (int m = 1; m <= 4 * ranks + 1; ++m) {
        const PassOrder order = pass_order(PipelineSchedule::kInterleaved, ranks, m, v);
        ASSERT_NO_THROW(check(order, {ranks, m, v})) << ranks << " ranks, " << m << " micro-batches, " << v;
        for (int r = 0; r < ranks; ++r) {
          const int ahead = 2 * (ranks - 1 - r) + (v - 1) * ranks + 1;
          EXPECT_LE(max_in_flight(order[static_cast<size_t>(r)]), std::min(ahead, v * m));
          if (m % ranks == 0) {
            EXPECT_EQ(max_in_flight(order[static_cast<size_t>(r)]), std::min(ahead, v * m));
          }
        }
      }
    }
  }
}

TEST(PassOrder, TextIsParsedBack) {
  const PassOrder order = pass_order(PipelineSchedule::k1F1B, 3, 5);
  EXPECT_EQ(parse_pass_order(text(order)), order);
  // The input has Windows line endings, and empty actions, which PyTorch writes for idle time.
  EXPECT_EQ(parse_pass_order("0F0,,,0B0\r\n\n,1F0, 1B0 ,\r\n"), pass_order(PipelineSchedule::k1F1B, 2, 1));
}

TEST(PassOrder, TwoPartBackwardsAreAccepted) {
  EXPECT_NO_THROW(check(parse_pass_order("0F0,0F1,0I0,0I1,0W0,0W1\n1F0,1I0,1F1,1W0,1B1\n"), {2, 2}));
}

TEST(PassOrder, VirtualStagesAreDistributedOverRanks) {
  EXPECT_NO_THROW(check(parse_pass_order("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n"), {2, 1, 2}));
  EXPECT_EQ(refusal("0F0,1F0,1B0,0B0\n2F0,3F0,3B0,2B0\n", {2, 1, 2}), "pass order of rank 0: 1F0 belongs to rank 1");
}

TEST(PassOrder, MalformedTextIsRefused) {
  for (const std::string word : {"F0", "0F", "0X0", "0F0x", "-1F0", "0F-1", "0f0", "99999999999F0", "0F0 0F1"}) {
    const std::string message = test::usage_error_message([&] { parse_pass_order("0F0\n0B0," + word + "\n"); });
    EXPECT_EQ(message.rfind("line 2: invalid action '" + word + "': expected", 0), 0u) << message;
  }
}

TEST(PassOrder, TheFirstInvalidActionIsNamed) {
  const auto expect = [](std::string_view lines, std::string_view message) {
    EXPECT_EQ(refusal(lines, {2, 2}), message) << lines;
  };
  constexpr std::string_view kSecond = "1F0,1B0,1F1,1B1\n";
  const auto with = [&](const std::string& first) { return first + "\n" + std::string(kSecond); };
  expect("0F0,0B0,0F1,0B1\n", "the pass order has lines for 1 ranks, but the pipeline has 2");
  expect(with("0F0,0F1,0B0"), "pass order of rank 0: 0B1 is missing");
  expect(with("0F0,0B0,0B1"), "pass order of rank 0: 0B1 precedes 0F1");
  expect(with("0F0,0F0,0B0,0F1,0B1"), "pass order of rank 0: 0F0 repeats a pass that has run");
  expect(with("0F0,0F1,0B0,0B1,0I1"), "pass order of rank 0: 0I1 repeats a pass that has run");
  expect(with("0F0,0F1,0B0,0W1,0I1"), "pass order of rank 0: 0W1 does not follow 0I1");
  expect(with("0F0,0F1,0B0,0I1"), "pass order of rank 0: 0W1 is missing");
  expect(with("0F0,0F2,0B0,0B2"), "pass order of rank 0: 0F2 names micro-batch 2: expected 0 to 1");
  expect(with("0F0,2F0,0B0"), "pass order of rank 0: 2F0 names virtual stage 2: expected 0 to 1");
  expect(with("0F0,0F1,0B1,0B0"), "pass order of rank 0: 0B0 follows micro-batch 1: expected ascending micro-batches");
  expect(with("0F1,0F0,0B0,0B1"), "pass order of rank 0: 0F0 follows micro-batch 1: expected ascending micro-batches");
  expect(with("0F0,0F1,0I0,0B1,0W0"),
         "pass order of rank 0: 0W0 follows micro-batch 1: expected ascending micro-batches");
}

TEST(PassOrder, NegativeNumbersAndMissingActionsAreRefused) {
  const auto expect = [](const PassOrder& order, const PipelineShape& shape, std::string_view message) {
    EXPECT_EQ(test::usage_error_message([&] { check(order, shape); }), message);
  };
  expect({{{0, PassKind::kForward, -1}}}, {1, 1},
         "pass order of rank 0: an action has virtual stage 0 and micro-batch -1: expected 0 or more");
  expect({{{-1, PassKind::kForward, 0}}}, {1, 1},
         "pass order of rank 0: an action has virtual stage -1 and micro-batch 0: expected 0 or more");
  expect({{}}, {1, 1}, "pass order of rank 0: 0F0 is missing");
  expect({{{0, PassKind::kForward, 0}}}, {1, 1 << 30},
         "pass order of rank 0: it has 1 actions: expected at least 2147483648");
}

/// The times at which the passes of an order end. A plain reference: repeats until every
/// action has a time.
std::map<std::string, int64_t> plain_end_times(const PassOrder& order, const StagePassTimes& times) {
  std::map<std::string, int64_t> ends;
  const auto input_end = [&](const PipelineAction& action) -> std::optional<int64_t> {
    const auto [stage, pass, m] = action;
    const bool forward = pass == PassKind::kForward;
    const int from = forward ? stage - 1 : stage + 1;
    if (pass == PassKind::kBackwardWeights || from < 0 || from == std::ssize(times)) return 0;
    for (const PassKind kind : {PassKind::kForward, PassKind::kBackward, PassKind::kBackwardInput}) {
      const auto found = ends.find(name(PipelineAction{from, kind, m}));
      if ((kind == PassKind::kForward) == forward && found != ends.end()) return found->second;
    }
    return std::nullopt;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& actions : order) {
      int64_t now = 0;
      for (const PipelineAction& action : actions) {
        const auto produced = input_end(action);
        if (!produced) break;
        const auto [stage, pass, m] = action;
        const int from = pass == PassKind::kForward ? stage - 1 : stage + 1;
        const bool received = pass != PassKind::kBackwardWeights && from >= 0 && from < std::ssize(times);
        const PassTimes sender = received ? times[static_cast<size_t>(from)] : PassTimes{};
        const int64_t transfer = pass == PassKind::kForward ? sender.send_activations : sender.send_gradients;
        now = std::max(now, *produced + (received ? transfer : 0)) +
              times[static_cast<size_t>(action.stage)].of(action.pass);
        changed |= ends.emplace(name(action), now).second;
      }
    }
  }
  return ends;
}

/// Returns the times at which the data of a rank's transfers is produced, in the order of the transfers.
std::vector<int64_t> transfer_times(const std::vector<PipelineAction>& actions, const Receives& receives,
                                    const std::map<std::string, int64_t>& ends, int stage_count) {
  std::vector<int64_t> times;
  for (size_t i = 0; i < actions.size(); ++i) {
    for (const auto& [stage, pass, m] : receives[i]) {
      const bool forward = pass == PassKind::kForward;
      const PipelineAction whole{forward ? stage - 1 : stage + 1, forward ? pass : PassKind::kBackward, m};
      const auto found = ends.find(name(whole));
      times.push_back(found != ends.end() ? found->second
                                          : ends.at(name(PipelineAction{whole.stage, PassKind::kBackwardInput, m})));
    }
    const int to = actions[i].pass == PassKind::kForward ? actions[i].stage + 1 : actions[i].stage - 1;
    const bool sends = actions[i].pass != PassKind::kBackwardWeights && to >= 0 && to < stage_count;
    if (sends) times.push_back(ends.at(name(actions[i])));
  }
  return times;
}

/// Each rank runs its transfers in the order in which their data is produced, whatever times passes and transfers take.
TEST(PassOrder, TransfersFollowThePassTimes) {
  using enum PipelineSchedule;
  constexpr std::pair<PipelineSchedule, int> kSchedules[] = {
      {kGpipe, 1}, {k1F1B, 1}, {kZeroBubble, 1}, {kInterleaved, 2}};
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const auto [schedule, v] = kSchedules[trial % 4];
    const int ranks = 2 + trial % 5, m = 1 + static_cast<int>(random() % 12);
    const auto time = [&] { return static_cast<int64_t>(1 + random() % 100); };
    StagePassTimes times;
    for (int stage = 0; stage < ranks * v; ++stage) times.push_back({time(), time(), time(), time(), time(), time()});
    const PassOrder order = pass_order(schedule, ranks, m, v);
    const std::map<std::string, int64_t> ends = plain_end_times(order, times);
    const std::vector<Receives> receives = receives_of(order, false, times);
    for (size_t r = 0; r < order.size(); ++r) {
      const std::vector<int64_t> produced = transfer_times(order[r], receives[r], ends, ranks * v);
      EXPECT_TRUE(std::ranges::is_sorted(produced)) << "trial " << trial << ", rank " << r;
    }
  }
}

/// Every input is received exactly once, and not later than the pass that reads it. Inputs that are received early add
/// at most one micro-batch in flight per virtual stage.
TEST(PassOrder, EveryInputIsReceivedOnce) {
  using enum PipelineSchedule;
  for (const auto& [schedule, v] :
       {std::pair(kGpipe, 1), {k1F1B, 1}, {kZeroBubble, 1}, {kInterleaved, 2}, {kInterleaved, 3}}) {
    for (int ranks = v > 1 ? 2 : 1; ranks <= 6; ++ranks) {
      for (int m = 1; m <= 12; ++m) {
        const PassOrder order = pass_order(schedule, ranks, m, v);
        for (int r = 0; r < ranks; ++r) {
          const auto& actions = order[static_cast<size_t>(r)];
          const Receives receives = receives_of(order)[static_cast<size_t>(r)];
          ASSERT_EQ(receives.size(), actions.size());
          std::vector<PipelineAction> received;
          for (size_t i = 0; i < actions.size(); ++i) {
            received.insert(received.end(), receives[i].begin(), receives[i].end());
            const int stage = actions[i].stage;
            const PassKind pass = actions[i].pass;
            const bool needs_input = pass == PassKind::kForward           ? stage > 0
                                     : pass == PassKind::kBackwardWeights ? false
                                                                          : stage + 1 < ranks * v;
            EXPECT_EQ(std::ranges::count(received, actions[i]), needs_input ? 1 : 0);
          }
          EXPECT_EQ(received.size(), static_cast<size_t>(m * (2 * v - (r == 0) - (r + 1 == ranks))));
          EXPECT_LE(max_in_flight(actions, receives), max_in_flight(actions) + v);
        }
      }
    }
  }
}

TEST(PassOrder, ADeadlockIsReportedWithTheActionsThatWait) {
  // Rank 0 waits for the gradient of micro-batch 0 before it sends micro-batch 1. Rank 1 waits for micro-batch 1 before
  // it computes that gradient.
  EXPECT_EQ(refusal("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", {2, 2}),
            "pass order of rank 0: 0B0 never starts, because of a deadlock: rank 0 waits in 0B0 for 1B0, rank 1 waits "
            "in 1F1 for 0F1");
}

}  // namespace
}  // namespace aliquot
