// Runs aliquot checkpoint list, show, verify, diff and prune.
#include <atomic>
#include <chrono>
#include <cstring>
#include <gtest/gtest.h>
#include <thread>

#include "apps/train/digest.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/save.h"
#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

using test::CommandResult;
using test::run_aliquot;

class CheckpointCommand : public ::testing::Test {
 protected:
  std::string at(int64_t step) const { return (directory_.path() / checkpoint_name(step)).string(); }
  std::string all() const { return directory_.path().string(); }
  void save(int64_t step, uint64_t seed = 1) const {
    test::save_test_state(directory_.path(), test::small_tensors(), seed, step, 2);
  }
  void damage(int64_t step) const {
    std::string bytes = test::read_file(at(step) + "/state.h5");
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    test::write_file(at(step) + "/state.h5", bytes);
  }
  test::TemporaryDirectory directory_;
};

CommandResult checkpoint(std::vector<std::string> words) {
  words.insert(words.begin(), "checkpoint");
  return run_aliquot(words);
}

::testing::AssertionResult contains(const std::string& text, const std::string& words) {
  if (text.find(words) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << words << "' is not in\n" << text;
}

TEST_F(CheckpointCommand, ListsCheckpointsOldestFirstAndMarksInvalidOnes) {
  save(7);
  save(100);
  const CommandResult good = checkpoint({"list", all()});
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_LT(good.out.find(at(7)), good.out.find(at(100)));
  EXPECT_TRUE(contains(good.out, "2 ranks"));
  test::write_file(at(7) + "/manifest.json", "{}");
  const CommandResult bad = checkpoint({"list", all()});
  EXPECT_EQ(bad.code, 0);
  EXPECT_TRUE(contains(bad.out, "BAD"));
  EXPECT_EQ(checkpoint({"list", all() + "/none"}).code, 5);
}

TEST_F(CheckpointCommand, ShowsTensorsScalarsAndTheDigest) {
  save(100);
  WeightDigest digest;
  for (const test::TestTensor& tensor : test::small_tensors()) {
    if (!tensor.path.starts_with("parameters/")) continue;
    Sha256 sha;
    sha.update(test::full_tensor_bytes(tensor, 1));
    digest.add(tensor.path.substr(11), tensor.dtype, tensor.shape, sha.finish());
  }
  for (const std::string& place : {at(100), all()}) {
    const CommandResult result = checkpoint({"show", place});
    EXPECT_EQ(result.code, 0) << result.err;
    for (const std::string& words :
         {std::string("step        100\n"), std::string("2 ranks"), std::string("parameters/w  float32 13x7\n"),
          std::string("optimizer/w/codes  uint8 91\n"), std::string("loader_position = [1, 2, 4611686018427387904]"),
          "digest " + digest.finish() + "\n"}) {
      EXPECT_TRUE(contains(result.out, words));
    }
  }
}

TEST_F(CheckpointCommand, VerifiesOneOrAll) {
  save(7);
  save(100);
  EXPECT_EQ(checkpoint({"verify", at(7)}).code, 0);
  damage(7);
  const CommandResult one = checkpoint({"verify", at(7)});
  EXPECT_EQ(one.code, 5);
  EXPECT_TRUE(contains(one.err, "is damaged: the checksum of bytes"));
  EXPECT_EQ(checkpoint({"verify", at(100)}).code, 0);
  const CommandResult both = checkpoint({"verify", all()});
  EXPECT_EQ(both.code, 5);
  EXPECT_TRUE(contains(both.out, at(100) + ": good"));
  EXPECT_EQ(checkpoint({"verify", all() + "/nowhere"}).code, 5);
  for (const char* verb : {"show", "verify"}) EXPECT_EQ(checkpoint({verb, at(7)}).code, 5) << verb;
  EXPECT_EQ(checkpoint({"diff", at(7), at(100)}).code, 5);
}

TEST_F(CheckpointCommand, DiffReportsDifferencesOfTensorsAndScalars) {
  float a[] = {1, 2, 3, 4}, b[] = {1, 2.5, 3, 4.25};
  const auto save_as = [&](int64_t step, float* values, const char* path) {
    const auto failures = test::on_ranks(1, [&](Communicator& communicator) {
      State state{step, {}, {{"seed", step}}};
      state.tensors = {{"parameters/w", {2, 2}, DType::kFloat32, {{0, 4, reinterpret_cast<std::byte*>(values)}}},
                       {path, {2}, DType::kFloat32, {{0, 2, reinterpret_cast<std::byte*>(a)}}}};
      aliquot::save(state, communicator, directory_.path());
    });
    ASSERT_EQ(failures[0], "");
  };
  save_as(1, a, "parameters/same");
  save_as(2, b, "parameters/same");
  save_as(3, a, "parameters/other");
  EXPECT_EQ(checkpoint({"diff", at(1), at(1)}).code, 0);
  const CommandResult differ = checkpoint({"diff", at(1), at(2)});
  EXPECT_EQ(differ.code, 1);
  EXPECT_TRUE(contains(differ.out,
                       "parameters/w: 2 of 4 elements differ, by at most 0.5 (element 1: 2 and 2.5); the norm of the "
                       "difference is 0.102 times"));
  EXPECT_TRUE(contains(differ.out, "seed: 1 and 2\n"));
  EXPECT_EQ(differ.out.find("parameters/same"), std::string::npos);
  const CommandResult named = checkpoint({"diff", at(1), at(3)});
  EXPECT_EQ(named.code, 1);
  EXPECT_TRUE(contains(named.out, "parameters/same: only in the first"));
  EXPECT_TRUE(contains(named.out, "parameters/other: only in the second"));
}

TEST_F(CheckpointCommand, PrunesCheckpointsOlderThanTheNewestValidOnes) {
  for (int64_t step : {1, 2, 3, 4}) save(step);
  damage(4);
  const CommandResult result = checkpoint({"prune", all(), "--keep", "2"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(contains(result.err, "is damaged"));  // step 4, which --keep does not count
  EXPECT_TRUE(contains(result.out, "removed " + at(1)));
  for (int64_t step : {1, 2, 3, 4}) EXPECT_EQ(std::filesystem::exists(at(step)), step != 1) << step;
  EXPECT_EQ(checkpoint({"prune", all(), "--keep=1"}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(at(2)));
  EXPECT_TRUE(std::filesystem::exists(at(3)));
  damage(3);
  EXPECT_EQ(checkpoint({"prune", all(), "--keep", "1"}).code, 0);
  EXPECT_TRUE(std::filesystem::exists(at(3))) << "prune must remove nothing if no checkpoint is valid";
}

/// The name of the directory orders checkpoints, so it must not contradict the step in the manifest.
TEST_F(CheckpointCommand, RejectsACheckpointWithTheNameOfAnotherStep) {
  save(7);
  save(8);
  std::filesystem::rename(at(7), at(9));
  const CommandResult verified = checkpoint({"verify", all()});
  EXPECT_EQ(verified.code, 5);
  EXPECT_TRUE(contains(verified.out, at(8) + ": good"));
  EXPECT_TRUE(contains(verified.err,
                       "it has the name of step 9, but its manifest has step 7: rename it to " + checkpoint_name(7)));
  EXPECT_TRUE(contains(checkpoint({"list", all()}).out, "BAD"));
  EXPECT_EQ(checkpoint({"verify", at(9) + "/"}).code, 5);
  EXPECT_EQ(find_newest_valid(all()).found->step, 8);
  std::filesystem::rename(at(9), directory_.path() / "kept");
  EXPECT_EQ(checkpoint({"verify", (directory_.path() / "kept").string()}).code, 0);
}

/// Another process removes checkpoints while verify and prune read them.
TEST_F(CheckpointCommand, IgnoresCheckpointsThatAnotherProcessRemoves) {
  constexpr int64_t kLast = 60;
  for (int64_t step = 1; step <= kLast; ++step) save(step);
  std::atomic<bool> done{false};
  std::thread pruning([&] {
    for (int64_t step = 1; step < kLast; ++step) {
      EXPECT_TRUE(remove_checkpoints(all(), {{step, at(step)}}).empty());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    done = true;
  });
  while (!done) {
    const CommandResult verified = checkpoint({"verify", all()});
    EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
    const CommandResult pruned = checkpoint({"prune", all(), "--keep", "55"});
    EXPECT_EQ(pruned.code, 0) << pruned.out << pruned.err;
    EXPECT_EQ(pruned.err, "");
  }
  pruning.join();
}

TEST_F(CheckpointCommand, InvalidArgumentsExitWith1) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{{},
                                                                                     {"vrify", all()},
                                                                                     {"verify"},
                                                                                     {"verify", all(), all()},
                                                                                     {"diff", all()},
                                                                                     {"prune", all()},
                                                                                     {"prune", all(), "--keep", "0"},
                                                                                     {"show", all(), "--keep", "2"}}) {
    const CommandResult result = checkpoint(words);
    EXPECT_EQ(result.code, 1) << result.out << result.err;
    EXPECT_NE(result.err, "");
  }
  EXPECT_TRUE(contains(checkpoint({"vrify", all()}).err, "Did you mean verify?"));
}

/// Generates elements when they are read, so that a large tensor needs no memory in this process.
class GeneratedElements final : public PieceAccess {
 public:
  void read(const StatePiece&, int64_t first, int64_t count, std::byte* to) const override {
    for (int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(first + i);
      std::memcpy(to + i * 4, &value, 4);
    }
  }
  void write(const StatePiece&, int64_t, int64_t, const std::byte*) const override {}
};

TEST_F(CheckpointCommand, MemoryDoesNotGrowWithTheModel) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the peak memory includes the memory of the sanitizer";
#endif
  constexpr int64_t kCount = int64_t{48} << 20, kMaxBytes = int64_t{64} << 20;
  const GeneratedElements access;
  const auto failures = test::on_ranks(1, [&](Communicator& communicator) {
    State state{5, {}, {}};
    state.tensors = {{"parameters/w", {kCount}, DType::kFloat32, {{0, kCount, nullptr}}, &access}};
    aliquot::save(state, communicator, directory_.path());
  });
  ASSERT_EQ(failures[0], "");
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"list", all()}, {"verify", at(5)}, {"show", at(5)}, {"diff", at(5), at(5)}}) {
    const CommandResult result = checkpoint(words);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_LT(result.peak_bytes, kMaxBytes) << words[0];
    std::printf("%s: peak memory of %lld MiB for a tensor of %lld MiB\n", words[0].c_str(),
                static_cast<long long>(result.peak_bytes >> 20), static_cast<long long>(kCount >> 18));
  }
}

}  // namespace
}  // namespace aliquot
