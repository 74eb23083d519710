// Runs the command with standard streams that are closed or full, and with files that cannot be read or written.
#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <string>
#include <sys/stat.h>

#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

const std::string kTiny =
    "train --layers 1 --width 16 --heads 2 --context 16 --micro-batch 1 --threads 1 --device host --steps 3 ";

class Streams : public testing::Test {
 protected:
  /// Runs `aliquot WORDS` with a shell in the folder of the test.
  test::CommandResult shell(const std::string& words) const {
    return test::run_program("/bin/sh", {"-c", fmt::format("cd '{}' && exec '{}' {}", folder_.path().string(),
                                                           test::aliquot_program(), words)});
  }
  std::string file(const std::string& name) const {
    std::ifstream stream(folder_.path() / name);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void expect_refusal(const std::string& words, const std::string& sentence) const {
    const test::CommandResult result = shell(words);
    EXPECT_EQ(result.code, 1) << words << "\n" << result.err;
    EXPECT_NE(result.err.find(sentence), std::string::npos) << words << "\n" << result.err;
    EXPECT_LE(std::ranges::count(result.err, '\n'), 3) << result.err;
  }
  test::TemporaryDirectory folder_;
};

TEST_F(Streams, FilesDoNotReuseTheDescriptorsOfClosedStreams) {
  EXPECT_EQ(shell(kTiny + "--metrics run.jsonl --checkpoint-dir saved >&-").code, 0);
  std::ifstream lines(folder_.path() / "run.jsonl");
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  EXPECT_EQ(count, 5);
  EXPECT_EQ(shell("checkpoint verify saved").code, 0);
  EXPECT_EQ(shell(kTiny + "<&- >&- 2>&-").code, 0);
}

TEST_F(Streams, LostOutputExitsWith3) {
  for (const std::string& words : {std::string("--version"), std::string("doctor"), std::string("plan --stages all"),
                                   kTiny + "--quiet", kTiny + "--dry-run", kTiny + "--checkpoint-dir saved"}) {
    const test::CommandResult result = shell(words + " >/dev/full");
    EXPECT_EQ(result.code, 3) << words;
    EXPECT_NE(result.err.find("writing to standard output failed: No space left on device."), std::string::npos)
        << words << "\n"
        << result.err;
  }
  EXPECT_EQ(shell("checkpoint verify saved").code, 0);  // the run with a checkpoint directory completed
  EXPECT_EQ(shell("checkpoint show /nowhere >/dev/full").code, 5);
}

TEST_F(Streams, LostWarningsDoNotChangeTheExitCode) {
  for (const char* lost : {" 2>/dev/full", " 2>&-"}) {
    EXPECT_EQ(shell(kTiny + "--zero-stge 1" + lost).code, 1) << lost;
    EXPECT_EQ(shell(kTiny + "--lr 1e20 --clip 0 --max-skipped 2 --steps 20" + lost).code, 4) << lost;
  }
}

TEST_F(Streams, UnreadableFilesAreReported) {
  std::filesystem::create_directory(folder_.path() / "folder");
  std::filesystem::create_symlink("loop", folder_.path() / "loop");
  ASSERT_EQ(mkfifo((folder_.path() / "pipe").c_str(), 0600), 0);
  ASSERT_EQ(mkfifo((folder_.path() / "pipe.h5").c_str(), 0600), 0);
  const std::string too_long(300, 'x');
  expect_refusal(kTiny + "--deepspeed folder", "--deepspeed folder: the file cannot be read (Is a directory)");
  expect_refusal("plan --machine folder", "--machine folder: the file cannot be read (Is a directory); expected host");
  expect_refusal("plan --machine nowhere", "expected host, dgx-a100, dgx-h100, dgx-h200 or a JSON file of rates");
  expect_refusal(kTiny + "--config /dev/full", "it is larger than 16 MiB");
  for (const std::string& place : {std::string("loop"), too_long, std::string("folder"), std::string("nowhere")}) {
    expect_refusal(kTiny + "--init " + place, "expected safetensors weights or a checkpoint, found neither");
    for (const char* verb : {"show ", "verify ", "export --out there "})
      EXPECT_EQ(shell("checkpoint " + (verb + place)).code, 5) << verb << place;
  }
  expect_refusal(kTiny + "--data pipe", "--data pipe: it is not a regular file");
  expect_refusal(kTiny + "--data pipe.h5", "--data pipe.h5: it is not a regular file");
  expect_refusal(kTiny + "--eval-data nowhere --eval-every 1", "--eval-data nowhere: No such file");
  for (const std::string& place : {std::string("folder"), std::string("loop"), too_long, std::string("/proc/none")})
    expect_refusal(kTiny + "--trace " + place, "--trace " + place + ": ");
  EXPECT_EQ(shell(kTiny + "--trace there.json").code, 0);
  EXPECT_EQ(file("there.json").front(), '{');
}

/// Exceeding the limit must not kill the run with SIGXFSZ. The failed save is reported and leaves no temporary file.
TEST_F(Streams, FileSizeLimitIsHandledAsAFullDisk) {
  const std::string limited =
      fmt::format("cd '{}' && ulimit -f 40 && exec '{}' {} --save blocking --checkpoint-dir saved",
                  folder_.path().string(), test::aliquot_program(), kTiny);
  const test::CommandResult result = test::run_program("/bin/sh", {"-c", limited});
  EXPECT_EQ(result.code, 3) << result.err;
  EXPECT_NE(result.err.find("File too large"), std::string::npos) << result.err;
  for (const auto& left : std::filesystem::directory_iterator(folder_.path() / "saved"))
    EXPECT_FALSE(left.path().filename().string().starts_with(".tmp-")) << left.path();
}

/// Whatever the limit, the run either succeeds or ends with one sentence that names the limit or the call that failed.
TEST_F(Streams, LimitsOnDescriptorsAndMemoryAreReported) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need descriptors and reserve address space";
#endif
  const auto run_with = [&](const std::string& limit) {
    const std::string line =
        fmt::format("cd '{}' && ulimit {} && exec '{}' {} --ranks 2 --checkpoint-dir saved{}", folder_.path().string(),
                    limit, test::aliquot_program(), kTiny, limit.substr(3));
    const test::CommandResult result = test::run_program("/bin/sh", {"-c", line});
    EXPECT_EQ(result.err.find("internal error"), std::string::npos) << limit << "\n" << result.err;
    EXPECT_LE(std::ranges::count(result.err, '\n'), 3) << limit << "\n" << result.err;
    return result;
  };
  int refused = 0;
  for (int descriptors = 5; descriptors <= 12; ++descriptors) {
    const test::CommandResult result = run_with(fmt::format("-n {}", descriptors));
    // The dynamic loader itself ends with 127 if it cannot open a library.
    EXPECT_TRUE(result.code == 0 || result.code == 3 || result.code == 127) << descriptors << ": " << result.code;
    if (result.code != 3) continue;
    ++refused;
    EXPECT_NE(result.err.find("Too many open files"), std::string::npos) << result.err;
  }
  EXPECT_GT(refused, 0);
  refused = 0;
  for (int kib = 100'000; kib <= 700'000; kib += 25'000) {
    const test::CommandResult result = run_with(fmt::format("-v {}", kib));
    EXPECT_TRUE(result.code == 0 || result.code == 2 || result.code == 127) << kib << ": " << result.code << result.err;
    refused += result.code == 2;
  }
  EXPECT_GT(refused, 0);
}

TEST_F(Streams, SettingsMayComeThroughAPipe) {
  const std::string words = fmt::format("'{}' {}--dry-run ", test::aliquot_program(), kTiny);
  for (const auto& [settings, flag] :
       {std::pair{"lr = 0.125", "--config /dev/stdin"},
        std::pair{R"({"optimizer": {"type": "Adam", "params": {"lr": 0.125}}})", "--deepspeed /dev/stdin"}}) {
    const test::CommandResult result =
        test::run_program("/bin/sh", {"-c", fmt::format("echo '{}' | {}{}", settings, words, flag)});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find("\nlr = 0.125\n"), std::string::npos) << flag << "\n" << result.out;
  }
}

TEST_F(Streams, PathsNeedNotBeUtf8) {
  const std::string name = "bad\xff.txt";
  std::ofstream(folder_.path() / name) << std::string(4096, 'a');
  const test::CommandResult result = shell(kTiny + "--metrics run.jsonl --data '" + name + "'");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(nlohmann::json::accept(file("run.jsonl").substr(0, file("run.jsonl").find('\n'))));
}

TEST_F(Streams, TruncatedDataIsReported) {
  std::ofstream(folder_.path() / "text") << std::string(1 << 20, 'a');
  const std::string train =
      fmt::format("'{}' {}--steps 100000 --data text >log 2>&1 & run=$!; ", test::aliquot_program(), kTiny);
  const test::CommandResult result = test::run_program(
      "/bin/sh",
      {"-c", fmt::format("cd '{}'; {} while ! grep -q 'step 5/' log; do sleep 0.05; done; : >text; wait $run",
                         folder_.path().string(), train)});
  EXPECT_EQ(result.code, 3) << file("log");
  EXPECT_NE(file("log").find("text has become shorter since the run began"), std::string::npos) << file("log");
}

}  // namespace
}  // namespace aliquot
