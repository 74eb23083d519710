// Tests how aliquot train handles replicated state that differs between ranks, gradients that are not finite, and loss
// spikes.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <random>

#include "apps/train/spike_guard.h"
#include "checkpoint/checkpoint_directory.h"
#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"
#include "tests/support/all_cases.h"
#include "tests/support/failing_world.h"

namespace aliquot {
namespace {

std::vector<std::string> small(std::vector<std::string> more) {
  std::vector<std::string> words{"train",   "--layers",      "2", "--width",   "32", "--sequence", "32",
                                 "--quiet", "--micro-batch", "1", "--threads", "1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

test::CommandResult run(const std::vector<std::string>& more, const std::string& fault = "") {
  return test::run_program(test::aliquot_program(), small(more),
                           fault.empty() ? std::vector<std::string>{} : std::vector{"ALIQUOT_FAULT=" + fault});
}

/// Options of a run, the operation in which a bit flips, and the text that the error must contain.
struct Flip {
  std::vector<std::string> words;
  const char *operation, *verdict;
};

TEST(Corruption, AFlippedBitIsReportedWithRankAndUnit) {
  const char* most = "in unit h.1 the parameters of rank 2 differ from those of ranks 0, 1 and 3;";
  for (const Flip& flip : {Flip{{"--zero-stage", "0"}, "update", most}, Flip{{"--zero-stage", "1"}, "publish", most},
                           Flip{{"--zero-stage", "2"}, "publish", most},
                           Flip{{"--zero-stage", "2", "--precision", "bf16"}, "publish", most},
                           Flip{{"--zero-stage", "3", "--replicas", "4"}, "update", most},
                           Flip{{"--zero-stage", "3", "--replicas", "2"},
                                "update",
                                "in unit h.1 the parameters of rank 0 and of rank 2 differ, and it is unknown which "
                                "are correct;"}}) {
    std::vector<std::string> words{"--ranks", "4", "--steps", "6", "--check-every", "1"};
    words.insert(words.end(), flip.words.begin(), flip.words.end());
    const test::CommandResult result = run(words, std::string("rank=2,step=3,unit=h.1,kind=flip,op=") + flip.operation);
    EXPECT_EQ(result.code, 3) << result.err;
    expect_contains(result.err, {"silent data corruption, found after step 3: ", flip.verdict, " of h.1.",
                                 ", is the first that differs; rank ", "; rank 2 is on node 0, host "});
  }
}

/// At ZeRO stages 1 and 2, `publish` overwrites the parameters after `update`, so a bit flip in `update` would have no
/// effect.
TEST(Corruption, AFlipThatPublishWouldOverwriteIsRejected) {
  for (const char* stage : {"1", "2"}) {
    const test::CommandResult result =
        run({"--ranks", "2", "--steps", "3", "--zero-stage", stage}, "rank=1,step=2,op=update,kind=flip");
    EXPECT_EQ(result.code, 1) << result.out;
    expect_contains(result.err, {"publish overwrites the flipped bit", "op=publish,kind=flip."});
  }
}

TEST(Corruption, NoCheckpointIsWrittenIfRanksDiffer) {
  const test::TemporaryDirectory saved;
  const test::CommandResult result =
      run({"--ranks", "3", "--zero-stage", "0", "--steps", "8", "--check-every", "1000", "--checkpoint-every", "2",
           "--save", "blocking", "--checkpoint-dir", saved.path().string()},
          "rank=1,step=3,op=update,kind=flip");
  EXPECT_EQ(result.code, 3) << result.err;
  expect_contains(result.err,
                  {"silent data corruption, found after step 4: ", "of rank 1 differ from those of ranks 0 and 2"});
  EXPECT_TRUE(std::filesystem::exists(saved.path() / "step-00000002"));
  EXPECT_FALSE(std::filesystem::exists(saved.path() / "step-00000004"));
}

TEST(Corruption, ChecksPassWithoutAFault) {
  const test::TemporaryDirectory disk;
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--zero-stage", "0", "--precision", "bf16", "--state", "bf16"},
        {"--zero-stage", "0", "--optimizer", "muon"},
        {"--zero-stage", "1", "--optimizer", "adamw8bit"},
        {"--zero-stage", "2", "--precision", "bf16", "--master", "fp32"},
        {"--zero-stage", "3", "--replicas", "2", "--offload", "disk:" + disk.path().string(), "--offload-parameters",
         "disk:" + disk.path().string()},
        {"--ranks", "1"}}) {
    std::vector<std::string> words{"--ranks", "4", "--steps", "4"};
    if (more.front() == "--ranks") words = {"--steps", "4"};
    words.insert(words.end(), more.begin(), more.end());
    const test::CommandResult plain = run(words);
    words.insert(words.end(), {"--check-every", "1"});
    const test::CommandResult checked = run(words);
    EXPECT_EQ(checked.code, 0) << checked.err;
    EXPECT_EQ(checked.out, plain.out);
  }
}

/// Tensors smaller than a block leave padding in offloaded buffers. The heap does not clear the memory of the padding.
TEST(Corruption, PaddingOfOffloadedStateIsTheSameOnAllRanks) {
  for (const char* precision : {"bf16", "fp16"}) {
    for (int round = 0; round < 5; ++round) {
      const test::CommandResult result = test::run_aliquot(
          {"train", "--ranks",     "2",       "--layers",  "1",    "--width",       "6", "--heads", "1", "--zero-stage",
           "0",     "--precision", precision, "--offload", "host", "--check-every", "1", "--steps", "2", "--quiet"});
      EXPECT_EQ(result.code, 0) << result.err;
    }
  }
}

/// The options of a run, and the part of the state in which ALIQUOT_FAULT flips a bit after step 3. `data` is its name
/// in the message.
struct StateFlip {
  const char *operation, *of, *data;
  std::vector<std::string> words;
};

/// Digests find a bit that flips after step 3 before the update of step 4, at every ZeRO stage and on every rank.
TEST(Corruption, DigestsFindAFlippedBitOfTheState) {
  const test::TemporaryDirectory disk;
  const std::string on_disk = "disk:" + disk.path().string();
  int rank = 0;
  for (const char* stage : {"0", "1", "2", "3"}) {
    const bool publishes = *stage == '1' || *stage == '2';
    for (StateFlip flip : {StateFlip{publishes ? "publish" : "update", "parameters", "parameters", {}},
                           StateFlip{"update", "exp_avg", "optimizer state", {}},
                           StateFlip{"update", "exp_avg_sq", "optimizer state", {"--offload", "host"}},
                           StateFlip{"update", "exp_avg", "optimizer state", {"--offload", on_disk}},
                           StateFlip{"update", "master", "masters", {"--precision", "bf16"}},
                           StateFlip{"update", "master", "masters", {"--precision", "bf16", "--master", "fp32"}},
                           StateFlip{"update", "exp_avg_sq_scale", "optimizer state", {"--optimizer", "adamw8bit"}},
                           StateFlip{"blend", "momentum_buffer", "optimizer state", {"--optimizer", "muon"}}}) {
      rank = (rank + 1) % 4;
      flip.words.insert(flip.words.end(), {"--ranks", "4", "--steps", "6", "--zero-stage", stage, "--check-state"});
      const test::CommandResult result =
          run(flip.words, fmt::format("rank={},step=3,unit=h.1,kind=flip,op={},of={}", rank, flip.operation, flip.of));
      EXPECT_EQ(result.code, 3) << stage << " " << flip.of << ": " << result.out << result.err;
      expect_contains(result.err, {fmt::format("silent data corruption, found in step 4: the {} of unit h.1 on rank {} "
                                               "(node 0, host ",
                                               flip.data, rank),
                                   ", is the first that differs;"});
    }
  }
}

/// Parameters that a rank reads in a step, but does not update, are compared in that step.
TEST(Corruption, DigestsFindAParameterThatFlipsDuringAStep) {
  for (const char* stage : {"0", "1", "2", "3"}) {
    const test::CommandResult result = run({"--ranks", "3", "--steps", "6", "--zero-stage", stage, "--check-state"},
                                           "rank=2,step=3,unit=h.0,kind=flip,op=forward");
    EXPECT_EQ(result.code, 3) << stage << ": " << result.err;
    expect_contains(result.err, {"found in step 3: the parameters of unit h.0 on rank 2 (node 0, host "});
  }
}

TEST(Corruption, DigestsAreInMetricsAndFlightRecordsAndAllowCheckEvery) {
  const test::TemporaryDirectory saved;
  const std::string metrics = saved.path() / "metrics.jsonl";
  const std::vector<std::string> words{"--ranks",
                                       "2",
                                       "--steps",
                                       "6",
                                       "--check-state",
                                       "--check-every",
                                       "1",
                                       "--metrics",
                                       metrics,
                                       "--checkpoint-dir",
                                       saved.path().string()};
  const test::CommandResult failed = run(words, "rank=1,step=3,op=update,kind=flip,of=exp_avg");
  EXPECT_EQ(failed.code, 3) << failed.err;
  for (const std::string& path : {metrics, (saved.path() / "flight-0000.txt").string()}) {
    std::ifstream file(path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    expect_contains(text,
                    {"silent data corruption, found in step 3: the optimizer state of unit ", " on rank 1 (node 0"});
  }
  const test::CommandResult report =
      test::run_aliquot({"report", metrics, "--out", (saved.path() / "page.html").string()});
  EXPECT_EQ(report.code, 0) << report.err;
}

TEST(Corruption, DigestsDoNotChangeTheResult) {
  for (const char* stage : {"0", "1", "2", "3"}) {
    for (const std::vector<std::string>& more :
         std::vector<std::vector<std::string>>{{},
                                               {"--pipeline", "2", "--accumulate", "2"},
                                               {"--tensor", "2"},
                                               {"--replicas", "2", "--precision", "bf16"}}) {
      std::vector<std::string> words{"--ranks", "4", "--steps", "4", "--zero-stage", stage};
      words.insert(words.end(), more.begin(), more.end());
      const test::CommandResult plain = run(words);
      words.push_back("--check-state");
      const test::CommandResult checked = run(words);
      EXPECT_EQ(checked.code, 0) << checked.err;
      EXPECT_EQ(checked.out, plain.out);
    }
  }
}

/// Transient and permanent faults on every rank, in a step and in a replay. Permanent ones begin after step 2, and the
/// replay of step 4 finds them.
TEST(Corruption, ReplaysNameTheRankThatComputesWrongGradients) {
  int stage = 0;
  for (int rank = 0; rank < 4; ++rank) {
    for (const char* fault :
         {"step=3,op=backward,times=always", "step=4,op=backward", "step=4,op=backward,unit=h.1,in=replay",
          "step=4,op=forward,of=activations", "step=3,op=forward,of=activations,unit=h.0,times=always"}) {
      stage = (stage + 1) % 4;
      const test::CommandResult result =
          run({"--ranks", "4", "--steps", "6", "--zero-stage", std::to_string(stage), "--replay-every", "2"},
              fmt::format("rank={},kind=flip,{}", rank, fault));
      EXPECT_EQ(result.code, 3) << fault << ": " << result.out << result.err;
      expect_contains(result.err, {"silent data corruption, found in step 4 before its update: ",
                                   fmt::format(": rank {} (node 0, host ", rank),
                                   ") computed wrong gradients of micro-batch 0, which other ranks computed again; the "
                                   "first difference is in unit "});
    }
  }
}

/// Transient and permanent faults in sums over ranks: on every rank, with replicas, and on two emulated nodes. In steps
/// without a replay, the ranks of an emulated node add their gradients before they send them.
TEST(Corruption, ReplaysNameTheRankThatAddsWrongly) {
  const auto expect_named = [](const test::CommandResult& result, int rank) {
    EXPECT_EQ(result.code, 3) << result.out << result.err;
    expect_contains(
        result.err,
        {"silent data corruption, found in step 4 before its update: ", fmt::format(": rank {} (node ", rank),
         ") computed a wrong sum of gradients over ranks, which other ranks computed again; the "
         "first difference is in unit "});
  };
  test::CaseSelection selection(2);
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<std::string> words{"--steps", "6", "--zero-stage", std::to_string(rank), "--replay-every", "2"};
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.end(), words.begin(), words.end());
      return more;
    };
    for (const char* fault : {"step=3,op=reduce,times=always", "step=4,op=reduce,unit=h.1"}) {
      if (selection.next())
        expect_named(run(with({"--ranks", "4"}), fmt::format("rank={},kind=flip,{}", rank, fault)), rank);
    }
    if (selection.next())
      expect_named(
          run(with({"--ranks", "6", "--replicas", "3"}), fmt::format("rank={},step=4,op=exchange,kind=flip", rank)),
          rank);
    if (selection.next())
      expect_named(run(with({"--ranks", "6", "--tensor", "2", "--heads", "2"}),
                       fmt::format("rank={},step=4,op=reduce,kind=flip", rank + 2)),
                   rank + 2);
    if (selection.next())
      expect_named(
          run(with({"--ranks", "6", "--pipeline", "2"}), fmt::format("rank={},step=4,op=reduce,kind=flip", rank + 1)),
          rank + 1);
    if (!test::has_mpi()) continue;
    const std::string exchange_fault = fmt::format("ALIQUOT_FAULT=rank={},step=4,op=exchange,kind=flip", rank);
    if (selection.next())
      expect_named(test::run_aliquot_under_mpirun(6, small(with({"--replicas", "3"})),
                                                  {"ALIQUOT_RANKS_PER_NODE=2", exchange_fault}),
                   rank);
    const std::string fault = fmt::format("ALIQUOT_FAULT=rank={},step=3,op=reduce,kind=flip,times=always", rank);
    if (selection.next())
      expect_named(test::run_aliquot_under_mpirun(4, small(with({})), {"ALIQUOT_RANKS_PER_NODE=2", fault}), rank);
  }
}

/// Pipeline stage 1 has ranks on two nodes and quantizes its sums, so it repeats none. The other stages repeat theirs.
TEST(Corruption, ReplaysOfPipelineStagesWithOtherNodesAgree) {
  const test::CommandResult result =
      test::run_program(test::aliquot_program(),
                        small({"--ranks", "6", "--pipeline", "3", "--zero-stage", "2", "--quantize", "gradients",
                               "--replay-every", "1", "--steps", "3", "--timeout", "20"}),
                        {"ALIQUOT_RANKS_PER_NODE=3"});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
}

TEST(Corruption, RejectsFaultsInSumsThatAreNotCompared) {
  for (const auto& [words, fault, text] :
       {std::tuple{std::vector<std::string>{"--ranks", "2"}, "op=reduce", "but this run does not compare such sums"},
        std::tuple{std::vector<std::string>{"--ranks", "2", "--replicas", "2", "--replay-every", "1"}, "op=reduce",
                   "but this run does not compare such sums"},
        std::tuple{std::vector<std::string>{"--ranks", "2", "--replay-every", "1"}, "op=update,of=sums",
                   "of=sums is for op=reduce and op=exchange"},
        std::tuple{std::vector<std::string>{"--ranks", "2", "--replay-every", "1"}, "op=reduce,of=parameters",
                   "of=sums is for op=reduce and op=exchange"}}) {
    const test::CommandResult result = run(words, fmt::format("rank=1,step=1,kind=flip,{}", fault));
    EXPECT_EQ(result.code, 1) << fault << ": " << result.err;
    expect_contains(result.err, {text});
  }
}

TEST(Corruption, ReplaysOfTwoRanksNameBoth) {
  const test::CommandResult result =
      run({"--ranks", "2", "--steps", "4", "--replay-every", "1"}, "rank=1,step=3,kind=flip,op=backward");
  EXPECT_EQ(result.code, 3) << result.err;
  expect_contains(result.err, {"found in step 3 before its update: rank 0 (node 0, host ", ") or rank 1 (node 0, host ",
                               "and no third rank could decide"});
}

TEST(Corruption, ReplaysAreInMetricsAndFlightRecords) {
  const test::TemporaryDirectory saved;
  const std::string metrics = saved.path() / "metrics.jsonl";
  const test::CommandResult failed = run({"--ranks", "3", "--steps", "6", "--replay-every", "3", "--metrics", metrics,
                                          "--checkpoint-dir", saved.path().string()},
                                         "rank=1,step=6,kind=flip,op=backward,unit=h.1");
  EXPECT_EQ(failed.code, 3) << failed.err;
  const auto text_of = [](const std::string& path) {
    std::ifstream file(path);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  expect_contains(text_of(metrics), {"\"replay_seconds\":0.0", "\"decided\":true", "\"ranks\":[1]", "\"nodes\":[0]",
                                     "\"unit\":\"h.1\"", "\"block\":0"});
  expect_contains(text_of((saved.path() / "flight-0000.txt").string()),
                  {"silent data corruption, found in step 6 before its update: rank 1 (node 0"});
}

TEST(Corruption, ReplaysDoNotChangeTheResult) {
  for (const char* stage : {"0", "1", "2", "3"}) {
    for (const std::vector<std::string>& more :
         std::vector<std::vector<std::string>>{{},
                                               {"--accumulate", "3", "--recompute", "block"},
                                               {"--pipeline", "2", "--accumulate", "2", "--tied", "off"},
                                               {"--pipeline", "2", "--accumulate", "2", "--accumulate-into", "shard"},
                                               {"--tensor", "2"},
                                               {"--replicas", "2", "--precision", "bf16"},
                                               {"--offload", "host", "--check-state"}}) {
      std::vector<std::string> words{"--ranks", "4", "--steps", "4", "--zero-stage", stage};
      words.insert(words.end(), more.begin(), more.end());
      const test::CommandResult plain = run(words);
      words.insert(words.end(), {"--replay-every", "2"});
      const test::CommandResult replayed = run(words);
      EXPECT_EQ(replayed.code, 0) << stage << " " << (more.empty() ? "" : more.front()) << replayed.err;
      EXPECT_EQ(replayed.out, plain.out);
    }
  }
}

TEST(Corruption, TheCostOfReplaysIsPrinted) {
  std::vector<std::string> words = small({"--ranks", "3", "--steps", "3", "--replay-every", "auto"});
  std::erase(words, "--quiet");
  const test::CommandResult result = test::run_aliquot(words);
  EXPECT_EQ(result.code, 0) << result.err;
  expect_contains(result.out, {"replay     every ", " % of the time in simulation\n",
                               "--replay-every: ", " replays in 3 steps, one every "});
  words.push_back("--dry-run");
  expect_contains(test::run_aliquot(words).out, {"replay: every "});
}

TEST(Corruption, AFlipOfUnknownStateIsRejected) {
  const test::CommandResult result = run({"--ranks", "2", "--steps", "2"}, "rank=1,op=update,kind=flip,of=velocity");
  EXPECT_EQ(result.code, 1);
  expect_contains(result.err,
                  {"of=velocity, but this run has no such state: expected one of parameters, exp_avg, exp_avg_sq."});
}

TEST(Corruption, CheckEveryNeedsReplicatedState) {
  const test::CommandResult result = run({"--ranks", "2", "--steps", "2", "--check-every", "1"});
  EXPECT_EQ(result.code, 1);
  expect_contains(result.err, {"--zero-stage 3 without --replicas or --tensor has no copies"});
}

TEST(NotFinite, IsReportedWithParameterAndUnit) {
  const test::CommandResult result =
      run({"--ranks", "2", "--steps", "4"}, "rank=1,step=3,op=backward,unit=h.1,kind=nan");
  EXPECT_EQ(result.code, 0);
  expect_contains(result.err, {"step 3 was skipped: the gradient of h.1.", " (unit h.1) is not finite."});
}

TEST(NotFinite, EndsTheRunAfterMaxSkippedSteps) {
  const test::CommandResult result =
      run({"--ranks", "2", "--steps", "20", "--lr", "1e15", "--clip", "0", "--max-skipped", "3"});
  EXPECT_EQ(result.code, 4);
  expect_contains(result.err, {"loss not finite on all ranks", "the gradients of the last 3 steps were not finite"});
}

/// If a run saved weights that are not finite, --keep would remove the older checkpoints, the only ones from which the
/// run can resume.
TEST(NotFinite, WeightsThatAreNotFiniteAreNotSaved) {
  const test::TemporaryDirectory folder;
  const std::string saved = folder.path().string();
  const std::vector<std::string> words{"--ranks",
                                       "2",
                                       "--steps",
                                       "30",
                                       "--update-in-backward",
                                       "--clip",
                                       "0",
                                       "--max-skipped",
                                       "6",
                                       "--checkpoint-dir",
                                       saved,
                                       "--checkpoint-every",
                                       "2",
                                       "--keep",
                                       "2",
                                       "--resume",
                                       "auto"};
  for (const std::string saves : {"blocking", "snapshot"}) {
    std::vector<std::string> these = words;
    these.insert(these.end(), {"--save", saves});
    const test::CommandResult spoiled = run(these, "rank=1,step=7,op=reduce,kind=nan");
    EXPECT_EQ(spoiled.code, 4) << spoiled.err;
    expect_contains(spoiled.err,
                    {"step 8 was not saved, because --update-in-backward updated weights from gradients that are not "
                     "finite"});
    const auto left = list_checkpoints(saved);
    ASSERT_EQ(left.size(), 2u) << spoiled.err;
    EXPECT_EQ(left.back().step, 6);
    these.insert(these.end(), {"--stop-after", "10"});
    const test::CommandResult resumed = run(these);
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(list_checkpoints(saved).back().step, 10);
    for (const FoundCheckpoint& found : list_checkpoints(saved)) std::filesystem::remove_all(found.path);
  }
  std::vector<std::string> last = words;
  last.insert(last.end(), {"--stop-after", "7"});
  const test::CommandResult spoiled = run(last, "rank=1,step=7,op=reduce,kind=nan");
  EXPECT_EQ(spoiled.code, 4);
  expect_contains(spoiled.err, {"the last 1 steps were not finite, and --update-in-backward applied them"});
  EXPECT_EQ(spoiled.err.find("--max-skipped"), std::string::npos) << "the limit of 6 was not reached";
  EXPECT_EQ(list_checkpoints(saved).back().step, 6);
}

/// Writes tokens for `steps` batches that are easy to learn, one batch of noise, and 40 easy batches.
std::string write_noise_after(const std::filesystem::path& path, int steps) {
  std::mt19937 random(1);
  std::string text(static_cast<size_t>(steps * 2 * 32), 'a');
  for (int i = 0; i < 2 * 32; ++i) text.push_back(static_cast<char>(random() % 256));
  text.append(40 * 2 * 32 + 1, 'a');
  std::ofstream(path, std::ios::binary) << text;
  return path.string();
}

TEST(Spikes, AreSkippedAlsoAfterAResume) {
  const test::TemporaryDirectory folder;
  const std::string data = write_noise_after(folder.path() / "data.txt", 60),
                    saved = (folder.path() / "saved").string();
  const std::vector<std::string> words{"--ranks",   "2",          "--steps",       "70",     "--lr",
                                       "1e-2",      "--schedule", "constant",      "--data", data,
                                       "--shuffle", "off",        "--skip-spikes", "4"};
  const test::CommandResult uninterrupted = run(words);
  EXPECT_EQ(uninterrupted.code, 0) << uninterrupted.err;
  expect_contains(uninterrupted.err, {"step 61 was skipped: its loss ", " standard deviations above the mean "});
  EXPECT_EQ(std::ranges::count(uninterrupted.err, '\n'), 1) << uninterrupted.err;
  std::vector<std::string> part = words;
  part.insert(part.end(), {"--checkpoint-dir", saved, "--stop-after", "58"});
  EXPECT_EQ(run(part).code, 0);
  part = words;
  part.insert(part.end(), {"--checkpoint-dir", saved, "--resume", "auto"});
  const test::CommandResult resumed = run(part);
  EXPECT_EQ(resumed.err, uninterrupted.err);
  EXPECT_EQ(resumed.out, uninterrupted.out);
  EXPECT_EQ(run({"--skip-spikes", "4", "--update-in-backward", "--clip", "0"}).code, 1);
}

TEST(SpikeGuard, ComparesWithMeanAndVarianceOfEarlierLosses) {
  SpikeGuard guard(3);
  for (int i = 0; i < 9; ++i) guard.add(i % 2 == 0 ? 4.0 : 5.0);
  EXPECT_FALSE(guard.is_spike(1000)) << "fewer than 10 losses were added";
  for (int i = 0; i < 100; ++i) guard.add(i % 2 == 0 ? 4.0 : 5.0);
  EXPECT_NEAR(guard.statistics().mean, 4.5, 0.02);
  EXPECT_NEAR(std::sqrt(guard.statistics().variance), 0.5, 0.02);
  EXPECT_FALSE(guard.is_spike(5.9));
  EXPECT_TRUE(guard.is_spike(6.2));
  EXPECT_FALSE(guard.is_spike(-100)) << "a decrease is not a spike";
  EXPECT_FALSE(guard.is_spike(std::nan(""))) << "the gradient check, not the guard, reports values that are not finite";
  EXPECT_FALSE(guard.is_spike(INFINITY));
}

}  // namespace
}  // namespace aliquot
