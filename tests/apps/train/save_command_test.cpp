// Runs aliquot train --save: all modes write equal checkpoints, and a full disk does not end training.
#include <algorithm>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/train/checkpoints/directory_claim.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/save.h"
#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

using test::CommandResult;

std::vector<std::string> training(const std::string& directory, const std::string& how) {
  return {"train",   "--ranks",  "2", "--threads",          "1", "--steps", "6", "--checkpoint-dir",
          directory, "--save",   how, "--checkpoint-every", "2", "--keep",  "0", "--progress",
          "lines",   "--layers", "2"};
}

TEST(Save, EveryModeWritesEqualFilesAndUsesThePlannedMemory) {
  test::TemporaryDirectory directory;
  for (const char* how : {"blocking", "snapshot", "auto"}) {
    const CommandResult result = test::run_aliquot(training(directory.path() / how, how));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find("agree to the byte"), std::string::npos) << result.out;
    for (const int64_t step : {2, 4, 6}) {
      const std::string file = checkpoint_name(step) + "/state.h5";
      EXPECT_TRUE(test::read_file(directory.path() / how / file) ==
                  test::read_file(directory.path() / "blocking" / file))
          << how << " " << step;
    }
  }
}

TEST(Save, ARunResumesFromABackgroundSave) {
  test::TemporaryDirectory directory;
  auto words = training(directory.path() / "run", "snapshot");
  words.insert(words.end(), {"--stop-after", "3"});
  EXPECT_EQ(test::run_aliquot(words).code, 0);
  EXPECT_EQ(list_checkpoints(directory.path() / "run").back().step, 3);
  words = training(directory.path() / "run", "snapshot");
  words.insert(words.end(), {"--resume", "auto"});
  EXPECT_EQ(test::run_aliquot(words).code, 0);
  EXPECT_EQ(test::run_aliquot(training(directory.path() / "straight", "blocking")).code, 0);
  const std::string last = checkpoint_name(6) + "/state.h5";
  EXPECT_TRUE(test::read_file(directory.path() / "run" / last) ==
              test::read_file(directory.path() / "straight" / last));
}

TEST(Save, FailureIsReportedAndTheRunContinues) {
  for (const char* how : {"blocking", "snapshot"}) {
    test::TemporaryDirectory directory;
    // The limit on file sizes is too small for a checkpoint.
    std::string line = "trap '' XFSZ; ulimit -f 2048; exec \"$0\" \"$@\"";
    std::vector<std::string> words{"-c", line, test::aliquot_program()};
    for (const std::string& word : training(directory.path() / "run", how)) words.push_back(word);
    const CommandResult result = test::run_program("/bin/sh", words);
    EXPECT_EQ(result.code, 3) << result.err;
    for (const char* step : {"step 2", "step 4"}) {
      EXPECT_NE(result.err.find(std::string("the checkpoint of ") + step + " was not written"), std::string::npos)
          << how << result.err;
    }
    EXPECT_NE(result.out.find("step 6/6"), std::string::npos) << result.out;
    // The failed run leaves only the flight records of its ranks and the tokenizer.
    std::set<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator(directory.path() / "run"))
      left.insert(entry.path().filename().string());
    EXPECT_EQ(left, (std::set<std::string>{"flight-0000.txt", "flight-0001.txt", "tokenizer.json"}));
  }
}

TEST(Save, ResumingWithAnotherOptimizerRequiresAllowMissing) {
  test::TemporaryDirectory directory;
  auto words = training(directory.path(), "blocking");
  words.insert(words.end(), {"--stop-after", "2", "--optimizer", "sgd", "--momentum", "0"});
  ASSERT_EQ(test::run_aliquot(words).code, 0);
  words = training(directory.path(), "blocking");
  words.insert(words.end(), {"--resume", "auto"});
  const CommandResult refused = test::run_aliquot(words);
  EXPECT_EQ(refused.code, 1) << refused.err;
  EXPECT_NE(refused.err.find("missing from the checkpoint: optimizer/h.0.attn.c_attn.bias/exp_avg"), std::string::npos)
      << refused.err;
  words.emplace_back("--allow-missing");
  const CommandResult allowed = test::run_aliquot(words);
  EXPECT_EQ(allowed.code, 0) << allowed.err;
  EXPECT_NE(allowed.err.find("these tensors start as zeros"), std::string::npos) << allowed.err;
  EXPECT_EQ(list_checkpoints(directory.path()).back().step, 6);
}

/// The message lists the first tensors in alphabetical order.
TEST(Save, ConversionOf8BitMomentsIsReported) {
  for (const auto& [from, to, says] : std::vector<std::tuple<const char*, const char*, const char*>>{
           {"adamw8bit", "adamw",
            "/exp_avg_sq (checkpoint: uint8 with optimizer/h.0.attn.c_attn.bias/exp_avg_sq_scale, state: float32)"},
           {"adamw", "adamw8bit",
            "/exp_avg (checkpoint: float32, state: uint8 with optimizer/h.0.attn.c_attn.bias/exp_avg_scale)"}}) {
    test::TemporaryDirectory directory;
    auto words = training(directory.path(), "blocking");
    words.insert(words.end(), {"--stop-after", "2", "--optimizer", from});
    ASSERT_EQ(test::run_aliquot(words).code, 0);
    words = training(directory.path(), "blocking");
    words.insert(words.end(), {"--resume", "auto", "--optimizer", to});
    const CommandResult resumed = test::run_aliquot(words);
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_NE(resumed.err.find("optimizer/h.0.attn.c_attn.bias" + std::string(says)), std::string::npos) << resumed.err;
    EXPECT_EQ(list_checkpoints(directory.path()).back().step, 6);
  }
}

/// Returns the `done` object of the metrics.
nlohmann::json done_of(const std::string& metrics) {
  const std::string text = test::read_file(metrics);
  return nlohmann::json::parse(text.substr(text.rfind('\n', text.size() - 2) + 1)).at("done");
}

/// Trains with the budget, compares measured with planned memory, and returns the planned staging bytes.
int64_t planned_staging(const std::filesystem::path& directory, const char* how, int64_t budget_bytes) {
  auto words = training(directory / std::to_string(budget_bytes), how);
  const std::string metrics = (directory / (std::to_string(budget_bytes) + ".jsonl")).string();
  words.insert(words.end(), {"--metrics", metrics, "--memory-budget", std::to_string(budget_bytes)});
  const CommandResult result = test::run_aliquot(words);
  EXPECT_EQ(result.code, 0) << result.err;
  const auto done = done_of(metrics);
  EXPECT_EQ(done.at("planned").at("staging"), done.at("measured").at("staging"));
  EXPECT_EQ(done.at("planned_peak"), done.at("measured_peak"));
  EXPECT_LE(done.at("measured_peak"), budget_bytes);
  return done.at("planned").at("staging");
}

TEST(Save, AutoTakesASnapshotIfTheBudgetAllows) {
  test::TemporaryDirectory directory;
  EXPECT_GT(planned_staging(directory.path(), "auto", int64_t{256} << 20), kStagingBytes);
  EXPECT_EQ(planned_staging(directory.path(), "auto", int64_t{12} << 20), kStagingBytes);
  auto words = training(directory.path() / "none", "snapshot");
  words.insert(words.end(), {"--memory-budget", "12MiB"});
  const CommandResult refused = test::run_aliquot(words);
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_NE(refused.err.find("--save blocking"), std::string::npos) << refused.err;
}

/// The model is so small that a save needs more memory than a step.
TEST(Save, BudgetIncludesStagingOfSaves) {
  test::TemporaryDirectory directory;
  const std::string metrics = (directory.path() / "m.jsonl").string();
  const std::vector<std::string> words{"train",   "--layers", "1",         "--width", "32",      "--sequence",    "8",
                                       "--steps", "2",        "--threads", "1",       "--quiet", "--micro-batch", "1"};
  auto measured = words;
  measured.insert(measured.end(), {"--metrics", metrics});
  ASSERT_EQ(test::run_aliquot(measured).code, 0);
  const int64_t peak_bytes = done_of(metrics).at("measured_peak");
  auto within = words;
  within.insert(within.end(), {"--memory-budget", std::to_string(peak_bytes)});
  EXPECT_EQ(test::run_aliquot(within).code, 0);
  within.insert(within.end(), {"--checkpoint-dir", (directory.path() / "runs").string()});
  const CommandResult refused = test::run_aliquot(within);
  EXPECT_EQ(refused.code, 2) << refused.err;
  // The message states the smallest budget with which the run can save.
  const std::string before = "the smallest plan found needs ";
  const std::size_t at = refused.err.find(" (", refused.err.find(before) + before.size());
  ASSERT_NE(at, std::string::npos) << refused.err;
  const std::string needed = std::to_string(std::stoll(refused.err.substr(at + 2)));
  *(std::find(within.begin(), within.end(), "--memory-budget") + 1) = needed;
  within.insert(within.end(), {"--metrics", metrics, "--save", "blocking"});
  const CommandResult saved = test::run_aliquot(within);
  ASSERT_EQ(saved.code, 0) << saved.err;
  EXPECT_EQ(done_of(metrics).at("measured_peak"), std::stoll(needed));
}

TEST(Save, LeftoversAreRemovedAtStartAndChangedOptionsReported) {
  test::TemporaryDirectory directory;
  auto words = training(directory.path(), "blocking");
  words.insert(words.end(), {"--stop-after", "4"});
  ASSERT_EQ(test::run_aliquot(words).code, 0);
  // Creates the leftovers of two killed saves: one was writing, and one was replacing the checkpoint of its step.
  std::filesystem::create_directory(directory.path() / ".tmp-00000006-abc");
  std::filesystem::rename(directory.path() / "step-00000004", directory.path() / ".old-step-00000004");
  words = training(directory.path(), "blocking");
  words.insert(words.end(), {"--resume", "auto", "--quiet"});
  auto other = words;
  other.insert(other.end(), {"--heads", "8"});
  const CommandResult refused = test::run_aliquot(other);
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("use --heads 4"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("restored "), std::string::npos) << refused.err;
  EXPECT_FALSE(std::filesystem::exists(directory.path() / ".tmp-00000006-abc"));
  words.insert(words.end(), {"--lr", "1e-3"});
  const CommandResult resumed = test::run_aliquot(words);
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("lr (checkpoint 0.0003, this run 0.001)"), std::string::npos) << resumed.err;
  EXPECT_EQ(list_checkpoints(directory.path()).back().step, 6);
}

/// Another run may have claimed a directory that was removed and created again.
TEST(Save, ARecreatedDirectoryIsClaimedAgain) {
  test::TemporaryDirectory above;
  const auto directory = above.path() / "checkpoints";
  std::filesystem::create_directory(directory);
  DirectoryClaim claim(directory);
  claim.renew();
  EXPECT_THROW(DirectoryClaim second(directory), UnavailableError);
  std::filesystem::remove(directory);
  claim.renew();
  EXPECT_TRUE(std::filesystem::is_directory(directory));
  EXPECT_THROW(DirectoryClaim second(directory), UnavailableError);
  std::filesystem::remove(directory);
  std::filesystem::create_directory(directory);
  const DirectoryClaim other(directory);
  EXPECT_THROW(claim.renew(), UnavailableError);
}

/// Two runs in one directory would remove or replace each other's checkpoints.
TEST(Save, ADirectoryHasOneRunAtATime) {
  test::TemporaryDirectory directory;
  const auto half = directory.path() / ".tmp-00000002-7";
  std::filesystem::create_directory(half);
  const std::vector<std::string> words = training(directory.path(), "blocking");
  {
    const DirectoryClaim other(directory.path());
    const CommandResult refused = test::run_aliquot(words);
    EXPECT_EQ(refused.code, 2) << refused.err;
    EXPECT_NE(refused.err.find("another run is using the directory: wait until it has ended"), std::string::npos)
        << refused.err;
    EXPECT_TRUE(std::filesystem::exists(half)) << "a temporary folder that may belong to the other run was removed";
  }
  EXPECT_EQ(test::run_aliquot(words).code, 0);
  EXPECT_FALSE(std::filesystem::exists(half));
}

TEST(Save, AFinishedRunPrintsItsDigestAgainAndAnInvalidCheckpointExitsWith5) {
  test::TemporaryDirectory directory;
  auto words = training(directory.path(), "blocking");
  const CommandResult first = test::run_aliquot(words);
  EXPECT_EQ(test::run_aliquot(words).code, 1) << "the directory has checkpoints, and --resume is not given";
  words.insert(words.end(), {"--resume", "auto"});
  const CommandResult again = test::run_aliquot(words);
  EXPECT_EQ(again.code, 0) << again.err;
  const auto digest = [](const CommandResult& result) { return result.out.substr(result.out.rfind("digest")); };
  EXPECT_EQ(digest(again), digest(first));
  for (const FoundCheckpoint& each : list_checkpoints(directory.path()))
    test::write_file(each.path / "manifest.json", "{}");
  EXPECT_EQ(test::run_aliquot(words).code, 5);
  words.back() = (directory.path() / "step-00000099").string();
  EXPECT_EQ(test::run_aliquot(words).code, 5);
}

}  // namespace
}  // namespace aliquot
