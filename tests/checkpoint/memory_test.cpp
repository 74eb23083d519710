// Checks that besides the state, a load and a save use only the staging buffer of each rank. The kernel measures the
// peak memory of the process, which must not depend on the size of the file.
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

constexpr int kRanks = 3;
constexpr int64_t kCount = int64_t{24} << 20;         // elements of each tensor
constexpr int64_t kOverheadBytes = int64_t{6} << 20;  // threads, lists and memory that the allocator retains
constexpr int64_t kMaxBytes = kRanks * kStagingBytes + kOverheadBytes;

/// Returns the value of the line `name` of /proc/self/status in bytes, or -1 if there is no such line.
int64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) return std::atoll(line.c_str() + name.size() + 1) * 1024;
  }
  return -1;
}

/// Resets the peak memory (VmHWM) of this process. Returns false if the system does not permit it.
bool reset_peak() {
  const int file = ::open("/proc/self/clear_refs", O_WRONLY);
  const bool worked = file >= 0 && ::write(file, "5", 1) == 1;
  if (file >= 0) ::close(file);
  return worked;
}

/// A state of two tensors. Each rank holds one third of each tensor. If `with_copies` is true, each rank holds the full
/// tensors, marked as copies on all ranks but 0.
class LargeState {
 public:
  LargeState(int rank, DType dtype, bool with_copies)
      : memory_(static_cast<size_t>(2 * kCount * element_bytes(dtype)), std::byte{1}) {
    const int64_t first = with_copies ? 0 : kCount * rank / kRanks,
                  last = with_copies ? kCount : kCount * (rank + 1) / kRanks;
    std::byte* at = memory_.data();
    state_.step = 1;
    for (const char* path : {"optimizer/w/exp_avg", "parameters/w"}) {
      const DType own = path[0] == 'o' ? dtype : DType::kFloat32;
      StateTensor tensor{path, {kCount}, own, {{first, last - first, at, with_copies && rank != 0}}, nullptr};
      state_.tensors.push_back(tensor);
      at += (last - first) * element_bytes(own);
    }
  }
  State& state() { return state_; }

 private:
  std::vector<std::byte> memory_;
  State state_;
};

class Memory : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the memory of the sanitizer would be counted too";
#endif
    if (!reset_peak()) GTEST_SKIP() << "this system does not permit resetting VmHWM";
  }

  /// Runs `body` on all ranks at once. Returns by how much the peak memory of the process exceeded its memory before
  /// `body`.
  static int64_t growth(Communicator& ranks, const std::function<void()>& body) {
    static int64_t before = 0;
    ranks.gather_objects("ready");
    if (ranks.rank() == 0) {
      reset_peak();
      before = status_bytes("VmRSS:");
    }
    ranks.gather_objects("go");
    body();
    ranks.gather_objects("done");
    return status_bytes("VmHWM:") - before;
  }

  void expect_bounded(const char* what, DType dtype, bool copies, const LoadOptions& options) {
    const auto failures = test::on_ranks(kRanks, [&](Communicator& ranks) {
      LargeState large(ranks.rank(), dtype, copies);
      Ledger ledger;
      LoadOptions how = options;
      how.ledger = &ledger;
      const int64_t bytes =
          growth(ranks, [&] { load(large.state(), ranks, directory_.path() / "step-00000001", how); });
      EXPECT_LE(bytes, kMaxBytes) << what;
      EXPECT_EQ(ledger.held_peak_bytes(), kStagingBytes) << what;
      if (ranks.rank() == 0) {
        std::printf("%s: %lld KiB besides the state of %lld MiB, %d ranks\n", what, static_cast<long long>(bytes >> 10),
                    static_cast<long long>(2 * kCount * 4 >> 20), kRanks);
      }
    });
    EXPECT_EQ(failures, std::vector<std::string>(kRanks));
  }

  test::TemporaryDirectory directory_;
};

TEST_F(Memory, ASaveAndALoadUseOnlyTheStagingBuffers) {
  const auto failures = test::on_ranks(kRanks, [&](Communicator& ranks) {
    LargeState large(ranks.rank(), DType::kFloat32, false);
    EXPECT_LE(growth(ranks, [&] { save(large.state(), ranks, directory_.path()); }), kMaxBytes);
  });
  EXPECT_EQ(failures, std::vector<std::string>(kRanks));
  expect_bounded("load after verification", DType::kFloat32, false, {});
  expect_bounded("load in one pass", DType::kFloat32, false, {.state_is_fresh = true});
  expect_bounded("load of copies", DType::kFloat32, true, {.state_is_fresh = true});
  expect_bounded("load that rounds", DType::kBFloat16, false, {.allow_rounding = true, .state_is_fresh = true});
}

/// Each rank has 512 of 1536 columns. So a page has elements of two ranks, and half of the bytes are exchanged.
TEST_F(Memory, ASaveAndALoadOfColumnsUseOnlyTheStagingBuffers) {
  constexpr int64_t kRun = 512, kStride = kRanks * kRun;
  const auto failures = test::on_ranks(kRanks, [&](Communicator& ranks) {
    std::vector<float> memory(kCount / kRanks, 1.0f);
    State state;
    state.step = 1;
    state.tensors = {{"parameters/w",
                      {kCount / kStride, kStride},
                      DType::kFloat32,
                      {{.offset = ranks.rank() * kRun,
                        .count = kCount / kRanks,
                        .bytes = reinterpret_cast<std::byte*>(memory.data()),
                        .run = kRun,
                        .stride = kStride}},
                      nullptr}};
    const int64_t saving = growth(ranks, [&] { save(state, ranks, directory_.path()); });
    const int64_t loading =
        growth(ranks, [&] { load(state, ranks, directory_.path() / "step-00000001", {.state_is_fresh = true}); });
    EXPECT_LE(saving, kMaxBytes);
    EXPECT_LE(loading, kMaxBytes);
    if (ranks.rank() == 0)
      std::printf("columns: save %lld KiB, load %lld KiB besides the state\n", static_cast<long long>(saving >> 10),
                  static_cast<long long>(loading >> 10));
  });
  EXPECT_EQ(failures, std::vector<std::string>(kRanks));
}

}  // namespace
}  // namespace aliquot
