// Runs aliquot train and checks the effects of its flags on digests, losses, metrics, memory and exit codes.
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/save.h"
#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"
#include "tests/support/all_cases.h"
#include "tests/support/mpirun.h"

namespace aliquot {
namespace {

using Json = nlohmann::json;

std::string digest(std::vector<std::string> words) {
  words.insert(words.begin(), {"train", "--steps", "3", "--layers", "2", "--quiet", "--threads", "1"});
  const test::CommandResult result = test::run_aliquot(words);
  EXPECT_EQ(result.code, 0) << result.err;
  return result.out;
}

TEST(TrainFlags, ReproducibleDigestIsEqualOnPowersOfTwoRanks) {
  const std::string alone = digest({"--ranks", "1", "--reproducible", "--global-batch", "16"});
  EXPECT_EQ(digest({"--ranks", "2", "--reproducible", "--global-batch", "16"}), alone);
  EXPECT_EQ(digest({"--ranks", "4", "--reproducible", "--global-batch", "16", "--zero-stage", "1"}), alone);
  EXPECT_NE(digest({"--ranks", "2", "--global-batch", "16"}), digest({"--ranks", "1", "--global-batch", "16"}));
}

/// Returns the training losses and the evaluation losses in a metrics file.
std::pair<std::vector<double>, std::vector<double>> losses(const std::string& metrics) {
  std::pair<std::vector<double>, std::vector<double>> found;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const Json object = Json::parse(line);
    if (object.contains("loss")) found.first.push_back(object["loss"]);
    if (object.contains("eval_loss")) found.second.push_back(object["eval_loss"]);
  }
  return found;
}

/// Results of a run: its losses, and the state.h5 of its last checkpoint, which also contains the loss statistics of
/// --skip-spikes.
struct RunResults {
  std::pair<std::vector<double>, std::vector<double>> losses;
  std::string state;
};

/// Trains with 16 micro-batches per step, on threads or, if `launched`, under mpirun.
RunResults train_reproducibly(int ranks, bool launched) {
  const test::TemporaryDirectory directory;
  const std::string metrics = directory.path() / "m.jsonl", data = directory.path() / "d.bytes";
  std::string bytes;
  for (int i = 0; i < 5000; ++i) bytes += static_cast<char>('a' + i * i % 26);
  std::ofstream(data) << bytes;
  const std::string each = std::to_string(16 / ranks), runs = directory.path() / "runs";
  std::vector<std::string> words;
  for (const std::string text :
       {"train --steps 6 --layers 1 --width 32 --sequence 16 --micro-batch 1 --threads 1 --quiet --reproducible",
        "--eval-every 3 --skip-spikes 3"}) {
    std::istringstream all(text);
    words.insert(words.end(), std::istream_iterator<std::string>(all), {});
  }
  words.insert(words.end(), {"--accumulate", each, "--eval-batches", each, "--eval-data", data, "--metrics", metrics,
                             "--checkpoint-dir", runs});
  if (!launched) words.insert(words.end(), {"--ranks", std::to_string(ranks)});
  const test::CommandResult result = launched ? test::run_aliquot_under_mpirun(ranks, words) : test::run_aliquot(words);
  EXPECT_EQ(result.code, 0) << result.err;
  return {losses(metrics), test::read_file(runs + "/" + checkpoint_name(6) + "/state.h5")};
}

TEST(TrainFlags, ReproducibleLossesAndCheckpointsAreEqualOnPowersOfTwoRanks) {
  const RunResults alone = train_reproducibly(1, false);
  EXPECT_EQ(alone.losses.first.size(), 6u);
  EXPECT_EQ(alone.losses.second.size(), 2u);
  for (const int ranks : {2, 4}) {
    for (const bool launched : {false, true}) {
      if (launched && !test::has_mpi()) continue;
      const RunResults results = train_reproducibly(ranks, launched);
      EXPECT_EQ(results.losses, alone.losses) << ranks << " ranks, launched " << launched;
      EXPECT_TRUE(results.state == alone.state) << ranks << " ranks, launched " << launched;
    }
  }
}

/// The ranks exchange their losses in several messages, because one message is too small for 2048 micro-batches.
TEST(TrainFlags, LossesOfManyMicroBatchesAreAddedInSeveralExchanges) {
  std::vector<double> sums;
  for (const int ranks : {1, 2}) {
    const test::TemporaryDirectory directory;
    const std::string metrics = directory.path() / "m.jsonl";
    const test::CommandResult result = test::run_aliquot({"train",
                                                          "--steps",
                                                          "1",
                                                          "--layers",
                                                          "1",
                                                          "--width",
                                                          "8",
                                                          "--heads",
                                                          "1",
                                                          "--sequence",
                                                          "4",
                                                          "--micro-batch",
                                                          "1",
                                                          "--threads",
                                                          "1",
                                                          "--quiet",
                                                          "--metrics",
                                                          metrics,
                                                          "--reproducible",
                                                          "--global-batch",
                                                          "2048",
                                                          "--ranks",
                                                          std::to_string(ranks)});
    ASSERT_EQ(result.code, 0) << result.err;
    sums.push_back(losses(metrics).first.at(0));
  }
  EXPECT_EQ(sums[0], sums[1]);
}

/// Every model family, with every precision that hosts support, has the same digest at all ZeRO stages, on threads and
/// under mpirun. Different precisions and models have different digests. The suite tries a selection of the stages and
/// launchers with each precision.
TEST(TrainFlags, DigestIsEqualAtAllZeroStagesForEveryModelAndPrecision) {
  std::set<std::string> digests;
  test::CaseSelection stages(2), launches(4);
  for (const std::vector<std::string>& precision : {std::vector<std::string>{"--precision", "fp32"},
                                                    {"--precision", "bf16"},
                                                    {"--precision", "bf16", "--gradients", "bf16"},
                                                    {"--precision", "fp32", "--gradients", "bf16"},
                                                    {"--precision", "fp16"},
                                                    {"--precision", "fp16", "--gradients", "bf16"},
                                                    {"--model", "llama-nano"},
                                                    {"--model", "llama-nano", "--precision", "bf16"},
                                                    {"--model", "llama-nano", "--precision", "fp16"}}) {
    std::vector<std::string> words{"--ranks", "2"};
    words.insert(words.end(), precision.begin(), precision.end());
    const std::string plain = digest(words);
    digests.insert(plain);
    for (const char* stage : {"0", "1", "2"}) {
      if (!stages.next()) continue;
      std::vector<std::string> staged = words;
      staged.insert(staged.end(), {"--zero-stage", stage});
      EXPECT_EQ(digest(staged), plain) << precision.back() << ", ZeRO stage " << stage;
    }
    std::vector<std::string> launched{"train", "--steps", "3", "--layers", "2", "--quiet", "--threads", "1"};
    launched.insert(launched.end(), precision.begin(), precision.end());
    if (!test::has_mpi() || !launches.next()) continue;
    const test::CommandResult result = test::run_aliquot_under_mpirun(2, launched);
    EXPECT_EQ(result.out, plain) << precision.back() << " " << result.err;
  }
  EXPECT_EQ(digests.size(), 9u);
}

TEST(TrainFlags, MeasuredMemoryEqualsPlannedIn16Bits) {
  for (const char* model : {"gpt2-nano", "llama-nano"}) {
    for (const char* precision : {"bf16", "fp16"}) {
      const test::CommandResult result =
          test::run_aliquot({"train", "--steps", "2", "--layers", "2", "--ranks", "2", "--threads", "1", "--precision",
                             precision, "--master", "fp32", "--recompute", "block", "--model", model});
      EXPECT_EQ(result.code, 0) << result.err;
      EXPECT_NE(result.out.find("planned and measured agree to the byte"), std::string::npos) << result.out;
    }
  }
  const test::CommandResult odd =
      test::run_program(test::aliquot_program(), {"train", "--precision", "bf16"}, {"ALIQUOT_BF16_PRODUCTS=fast"});
  EXPECT_EQ(odd.code, 1);
  EXPECT_NE(odd.err.find("expected tiles, pairs or widened"), std::string::npos) << odd.err;
  const test::CommandResult missing = test::run_program(test::aliquot_program(), {"train", "--precision", "bf16"},
                                                        {"ALIQUOT_BF16_PRODUCTS=tiles", "ALIQUOT_ISA=plain"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_NE(missing.err.find("the processor, the Linux kernel or ALIQUOT_ISA does not support it"), std::string::npos)
      << missing.err;
}

/// docs/engine.md promises one digest for all processors with fused multiply-add, and another one for all others.
TEST(TrainFlags, DigestIsEqualOnInstructionSetsWithFusedMultiplyAdd) {
  std::vector<std::string> digests;
  for (const char* isa : {"", "avx2", "avx512"}) {  // without the variable, the highest that the processor supports
    const test::CommandResult result = test::run_program(
        test::aliquot_program(), {"train", "--quiet", "--layers", "1", "--threads", "1", "--steps", "2"},
        *isa == 0 ? std::vector<std::string>{} : std::vector{"ALIQUOT_ISA=" + std::string(isa)});
    EXPECT_EQ(result.code, 0) << result.err;
    digests.push_back(result.out);
  }
  EXPECT_EQ(digests[1], digests[0]);
  EXPECT_EQ(digests[2], digests[0]);
}

TEST(TrainFlags, MetricsHaveTheLossScaleOnlyWithFp16) {
  for (const char* precision : {"fp16", "bf16"}) {
    test::TemporaryDirectory directory;
    const std::string metrics = directory.path() / "run.jsonl";
    digest({"--precision", precision, "--metrics", metrics});
    std::ifstream file(metrics);
    int scaled = 0;
    for (std::string line; std::getline(file, line);) {
      const Json object = Json::parse(line);
      if (object.contains("loss_scale")) scaled += object["loss_scale"] == 65536.0;
    }
    EXPECT_EQ(scaled, std::string_view(precision) == "fp16" ? 3 : 0);
  }
}

/// A run whose plan is rejected must not overwrite the metrics file of an earlier run.
TEST(TrainFlags, ARejectedPlanLeavesTheMetricsFileUnchanged) {
  const test::TemporaryDirectory directory;
  const std::string metrics = directory.path() / "m.jsonl";
  std::ofstream(metrics) << "of an earlier run";
  const auto result = test::run_aliquot({"train", "--steps", "1", "--threads", "1", "--metrics", metrics,
                                         "--zero-stage", "1", "--offload-parameters", "host"});
  EXPECT_EQ(result.code, 1) << result.err;
  std::ifstream file(metrics);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "of an earlier run");
}

TEST(TrainFlags, MaxSkippedMustBeAtLeastOne) {
  const auto result = test::run_aliquot({"train", "--steps", "1", "--threads", "1", "--max-skipped", "0"});
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.err.find("--max-skipped"), std::string::npos) << result.err;
}

TEST(TrainFlags, MemoryAndScheduleOptionsDoNotChangeTheDigest) {
  const std::string plain = digest({"--ranks", "2", "--clip", "0"});
  EXPECT_EQ(digest({"--ranks", "2", "--clip", "0", "--update-in-backward"}), plain);
  EXPECT_EQ(digest({"--ranks", "2", "--clip", "0", "--memory-budget", "12MiB"}), plain);
  EXPECT_EQ(digest({"--ranks", "2", "--clip", "0", "--recompute", "block"}), plain);
  EXPECT_EQ(digest({"--ranks", "2", "--clip", "0", "--gather", "copy", "--prefetch", "3", "--keep-gathered", "2"}),
            plain);
}

/// If the logits of the full vocabulary exceed the memory budget, the model computes them for one part (tile) of the
/// vocabulary at a time.
TEST(TrainFlags, ASmallBudgetComputesLogitsInTiles) {
  std::vector<std::string> words = {"--ranks", "2",     "--width",    "32", "--heads",       "2",
                                    "--vocab", "20000", "--sequence", "64", "--micro-batch", "4"};
  const std::string plain = digest(words);
  words.insert(words.end(), {"--memory-budget", "16MiB"});
  EXPECT_EQ(digest(words), plain);
  words.insert(words.begin(), "train");
  words.push_back("--dry-run");
  const test::CommandResult shown = test::run_aliquot(words);
  EXPECT_NE(shown.out.find("tile by tile"), std::string::npos) << shown.out << shown.err;
  words[words.size() - 2] = "64MiB";
  EXPECT_EQ(test::run_aliquot(words).out.find("tile by tile"), std::string::npos);
}

TEST(TrainFlags, ReplicasDoNotChangeDigestOrCheckpoints) {
  test::TemporaryDirectory directory;
  const std::string runs = directory.path() / "runs";
  const std::string plain = digest({"--ranks", "4"});
  EXPECT_EQ(digest({"--ranks", "4", "--replicas", "2"}), plain);
  EXPECT_EQ(digest({"--ranks", "4", "--replicas", "4", "--zero-stage", "1"}), plain);
  EXPECT_EQ(digest({"--ranks", "4", "--replicas", "2", "--zero-stage", "0"}), plain);
  const test::CommandResult stopped =
      test::run_aliquot({"train", "--steps", "3", "--layers", "2", "--threads", "1", "--ranks", "4", "--replicas", "2",
                         "--stop-after", "2", "--quiet", "--checkpoint-dir", runs});
  EXPECT_EQ(stopped.code, 0) << stopped.err;
  EXPECT_EQ(digest({"--ranks", "4", "--checkpoint-dir", runs, "--resume", "auto"}), plain);
  const test::CommandResult odd = test::run_aliquot({"train", "--ranks", "4", "--replicas", "3"});
  EXPECT_EQ(odd.code, 1);
  EXPECT_NE(odd.err.find("--replicas is 3"), std::string::npos) << odd.err;
}

/// Trains with four processes on two emulated nodes.
TEST(TrainFlags, ReplicasOnSeveralNodesDoNotChangeTheDigest) {
  if (!test::has_mpi()) GTEST_SKIP() << "mpirun is not installed, or the build does not include MPI";
  const auto on_two_nodes = [](std::vector<std::string> more) {
    std::vector<std::string> words{"train", "--steps", "3", "--layers", "2", "--quiet", "--threads", "1"};
    words.insert(words.end(), more.begin(), more.end());
    const test::CommandResult result = test::run_aliquot_under_mpirun(4, words, {"ALIQUOT_RANKS_PER_NODE=2"});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const std::string plain = digest({"--ranks", "4"});
  const std::string reproducible = digest({"--ranks", "4", "--reproducible", "--accumulate", "4"});
  test::CaseSelection selection(2);
  for (const char* replicas : {"2", "4"}) {
    for (const char* stage : {"0", "1", "3"}) {
      if (!selection.next()) continue;
      EXPECT_EQ(on_two_nodes({"--replicas", replicas, "--zero-stage", stage}), plain)
          << replicas << " replicas, ZeRO stage " << stage;
    }
    EXPECT_EQ(on_two_nodes({"--replicas", replicas, "--reproducible", "--accumulate", "4"}), reproducible)
        << replicas << " replicas";
  }
}

/// Ranks send matrices to the ranks that own them, and receive them back, in shared memory and between two emulated
/// nodes.
TEST(TrainFlags, MuonDigestIsEqualForThreadsAndProcesses) {
  if (!test::has_mpi()) GTEST_SKIP() << "mpirun is not installed, or the build does not include MPI";
  test::CaseSelection selection(3);
  for (const char* stage : {"0", "3"}) {
    // The matrices of six transformer blocks form two groups, which are orthogonalized one after the other.
    std::vector<std::string> words{"train", "--steps",     "2",    "--layers",     "6",  "--quiet", "--threads",
                                   "1",     "--optimizer", "muon", "--zero-stage", stage};
    std::vector<std::string> as_threads = words;
    as_threads.insert(as_threads.end(), {"--ranks", "4"});
    const test::CommandResult plain = test::run_aliquot(as_threads);
    EXPECT_EQ(plain.code, 0) << plain.err;
    for (const char* per_node : {"4", "2"}) {
      if (!selection.next()) continue;
      const test::CommandResult result =
          test::run_aliquot_under_mpirun(4, words, {std::string("ALIQUOT_RANKS_PER_NODE=") + per_node});
      EXPECT_EQ(result.code, 0) << result.err;
      EXPECT_EQ(result.out, plain.out) << per_node << " ranks per node, ZeRO stage " << stage;
    }
  }
}

/// For both offload targets and both modes of --save, measured memory equals planned memory, and all checkpoints exist.
TEST(TrainFlags, OffloadedRunsUseThePlannedMemoryAndSave) {
  for (const char* where : {"host", "disk"}) {
    for (const char* save : {"snapshot", "blocking"}) {
      test::TemporaryDirectory directory;
      const std::string to = where[0] == 'h' ? "host" : "disk:" + directory.path().string();
      const std::string runs = directory.path() / "runs";
      const test::CommandResult result = test::run_aliquot(
          {"train", "--steps", "3", "--layers", "2", "--threads", "1", "--ranks", "2", "--offload", to,
           "--offload-parameters", to, "--checkpoint-dir", runs, "--checkpoint-every", "1", "--save", save});
      EXPECT_EQ(result.code, 0) << result.err;
      EXPECT_NE(result.out.find("planned and measured agree to the byte"), std::string::npos)
          << where << ", " << save << "\n"
          << result.out;
      for (const int step : {1, 2, 3})
        EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(runs) / checkpoint_name(step))) << step;
    }
  }
}

TEST(TrainFlags, OffloadDoesNotChangeDigestOrCheckpoints) {
  test::TemporaryDirectory directory;
  const std::string disk = "disk:" + directory.path().string(), runs = directory.path() / "runs";
  const std::string plain = digest({"--ranks", "2"});
  EXPECT_EQ(digest({"--ranks", "2", "--offload", "host"}), plain);
  EXPECT_EQ(digest({"--ranks", "2", "--offload", disk, "--zero-stage", "1"}), plain);
  EXPECT_EQ(digest({"--ranks", "2", "--offload", disk, "--offload-parameters", disk}), plain);
  // A run without offload resumes from the checkpoint of a run that offloads to disk.
  const test::CommandResult stopped =
      test::run_aliquot({"train", "--steps", "3", "--layers", "2", "--threads", "1", "--ranks", "2", "--stop-after",
                         "2", "--quiet", "--offload", disk, "--offload-parameters", disk, "--checkpoint-dir", runs});
  EXPECT_EQ(stopped.code, 0) << stopped.err;
  // A run without offload writes the same state.h5 as the run that offloads.
  const std::string others = directory.path() / "others";
  test::run_aliquot({"train", "--steps", "3", "--layers", "2", "--threads", "1", "--ranks", "2", "--stop-after", "2",
                     "--quiet", "--checkpoint-dir", others});
  const std::filesystem::path file = std::filesystem::path(checkpoint_name(2)) / "state.h5";
  EXPECT_TRUE(test::read_file(runs / file) == test::read_file(others / file));
  EXPECT_EQ(digest({"--ranks", "2", "--checkpoint-dir", runs, "--resume", "auto"}), plain);
  const test::CommandResult nowhere =
      test::run_aliquot({"train", "--steps", "1", "--ranks", "1", "--offload", "disk:/nonexistent/of/course"});
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_NE(nowhere.err.find("--offload disk:"), std::string::npos) << nowhere.err;
  EXPECT_NE(nowhere.err.find("/nonexistent/of/course"), std::string::npos) << nowhere.err;
}

TEST(TrainFlags, ReducePrecisionStateAndOptimizerChangeTheDigest) {
  const std::string plain = digest({"--ranks", "2"});
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--reduce-precision", "bf16"},
                                                {"--state", "bf16"},
                                                {"--optimizer", "adamw8bit"},
                                                {"--optimizer", "muon"}}) {
    std::vector<std::string> stage1 = words, stage3 = words;
    stage1.insert(stage1.end(), {"--ranks", "2", "--zero-stage", "1"});
    stage3.insert(stage3.end(), {"--ranks", "2", "--zero-stage", "3"});
    EXPECT_NE(digest(stage1), plain) << words[0];
    EXPECT_EQ(digest(stage1), digest(stage3)) << words[0];
  }
}

TEST(TrainFlags, EvaluationIsReportedAndDoesNotChangeTheDigest) {
  test::TemporaryDirectory directory;
  const std::string data = directory.path() / "tokens.bytes", metrics = directory.path() / "m.jsonl";
  std::ofstream(data) << std::string(20000, 'a') << std::string(20000, 'b');
  const std::string plain = digest({"--ranks", "2"});
  EXPECT_EQ(
      digest({"--ranks", "2", "--eval-data", data, "--eval-every", "2", "--eval-batches", "2", "--metrics", metrics}),
      plain);
  std::ifstream file(metrics);
  std::vector<int64_t> steps;
  for (std::string line; std::getline(file, line);) {
    const Json record = Json::parse(line);
    if (!record.contains("eval_loss")) continue;
    steps.push_back(record["step"]);
    EXPECT_GT(record["eval_loss"].get<double>(), 0);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{2, 3}));  // the last step is always validated
}

TEST(TrainFlags, TraceHasOperationsOfEveryRank) {
  test::TemporaryDirectory directory;
  const std::string trace = directory.path() / "trace.json";
  digest({"--ranks", "2", "--trace", trace});
  std::ifstream file(trace);
  const Json events = Json::parse(file)["traceEvents"];
  int of_rank[2] = {0, 0};
  for (const Json& event : events) {
    if (event["ph"] != "X") continue;
    ++of_rank[event["pid"].get<int>()];
    EXPECT_GE(event["dur"].get<double>(), 0);
  }
  EXPECT_GT(of_rank[0], 10);
  EXPECT_EQ(of_rank[0], of_rank[1]);
}

/// All ranks contribute to a digest, and one rank writes it.
TEST(TrainFlags, DigestsInMetricsAreEqualForAllRankCountsAndZeroStages) {
  std::set<std::string> digests;
  for (const char* ranks : {"1", "2"}) {
    for (const char* stage : {"0", "1", "2", "3"}) {
      const test::TemporaryDirectory folder;
      const std::string path = (folder.path() / "run.jsonl").string();
      const test::CommandResult result = test::run_aliquot({"train",
                                                            "--steps",
                                                            "4",
                                                            "--layers",
                                                            "1",
                                                            "--width",
                                                            "16",
                                                            "--heads",
                                                            "2",
                                                            "--context",
                                                            "16",
                                                            "--global-batch",
                                                            "4",
                                                            "--micro-batch",
                                                            "1",
                                                            "--reproducible",
                                                            "--threads",
                                                            "1",
                                                            "--ranks",
                                                            ranks,
                                                            "--zero-stage",
                                                            stage,
                                                            "--digest-every",
                                                            "2",
                                                            "--metrics",
                                                            path,
                                                            "--timeout",
                                                            "20"});
      ASSERT_EQ(result.code, 0) << ranks << " ranks, ZeRO stage " << stage << ": " << result.err;
      std::ifstream file(path);
      std::vector<std::string> found;
      for (std::string line; std::getline(file, line);) {
        const Json json = Json::parse(line);
        if (json.contains("step")) found.push_back(json.value("digest", ""));
      }
      ASSERT_EQ(found.size(), 4u);
      EXPECT_TRUE(found[0].empty() && found[2].empty());
      EXPECT_EQ(found[1].size(), 64u);
      EXPECT_NE(result.out.find("digest " + found[3]), std::string::npos);
      digests.insert(found[1]);
    }
  }
  EXPECT_EQ(digests.size(), 1u);
}

/// The limit on file sizes is too small for the metrics file and large enough for the checkpoint.
TEST(TrainFlags, TrainingContinuesWhenMetricsCannotBeWritten) {
  const test::TemporaryDirectory directory;
  const std::string metrics = directory.path() / "m.jsonl", runs = directory.path() / "runs";
  const std::string line =
      "trap '' XFSZ; ulimit -f 150; exec \"$0\" train --quiet --layers 1 --width 8 --heads 1 "
      "--sequence 4 --micro-batch 1 --threads 1 --steps 900 --metrics " +
      metrics + " --checkpoint-dir " + runs;
  const test::CommandResult result = test::run_program("/bin/bash", {"-c", line, test::aliquot_program()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("Training continues without metrics."), std::string::npos) << result.err;
  EXPECT_NE(result.out.find("digest "), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(runs) / checkpoint_name(900)));
}

TEST(TrainFlags, AnUnwritableTraceExitsWith3) {
  const test::CommandResult result = test::run_aliquot(
      {"train", "--quiet", "--layers", "1", "--threads", "1", "--steps", "4", "--trace", "/dev/full"});
  EXPECT_EQ(result.code, 3);
  EXPECT_NE(result.err.find("--trace /dev/full: the file could not be written."), std::string::npos) << result.err;
}

/// With --update-in-backward, a step that is not finite cannot be skipped. The run ends with the same exit code as a
/// run that skips too many steps.
TEST(TrainFlags, ARunThatIsNotFiniteExitsWith4) {
  for (const bool in_backward : {false, true}) {
    std::vector<std::string> words = {"train", "--ranks", "2",      "--layers", "1",       "--steps",       "25",
                                      "--lr",  "1e15",    "--clip", "0",        "--quiet", "--max-skipped", "3"};
    if (in_backward) words.push_back("--update-in-backward");
    const test::CommandResult result = test::run_aliquot(words);
    EXPECT_EQ(result.code, 4) << result.err;
    EXPECT_NE(result.err.find(in_backward ? "was applied in backward" : "was skipped"), std::string::npos)
        << result.err;
    EXPECT_NE(result.err.find("the gradients of the last 3 steps were not finite"), std::string::npos) << result.err;
  }
}

/// mpirun ends all processes when the first one fails. The process that reports the error may be slower than others.
TEST(TrainFlags, ALateFirstProcessStillReportsTheError) {
  if (!test::has_mpi()) GTEST_SKIP() << "mpirun is not installed, or the build does not include MPI";
  const std::vector<std::string> words{
      "mpirun",
      "--oversubscribe",
      "-n",
      "6",
      "sh",
      "-c",
      "if [ \"$OMPI_COMM_WORLD_RANK\" = 0 ]; then sleep 0.5; fi; exec \"$0\" train --zero-stage 7",
      test::aliquot_program()};
  const test::CommandResult result = test::run_program("/usr/bin/env", words, test::mpirun_environment());
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.err.find("aliquot: --zero-stage: invalid value '7'"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace aliquot
