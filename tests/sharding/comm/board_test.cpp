// Tests of the data structures in memory that ranks share (abort notices, texts, descriptions of operations), and of
// waits that read them.
#include "sharding/comm/board.h"

#include <chrono>
#include <gtest/gtest.h>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "kernels/device/device.h"
#include "sharding/comm/abort_reason.h"
#include "sharding/comm/communicator.h"
#include "sharding/comm/operation_description.h"
#include "sharding/comm/signals.h"

namespace aliquot {
namespace {

TEST(AbortNotice, KeepsTheFirstReason) {
  AbortNotice notice;
  EXPECT_FALSE(notice.posted());
  notice.post("first");
  notice.post("second");
  EXPECT_TRUE(notice.posted());
  EXPECT_EQ(notice.why(), "first");
}

TEST(AbortNotice, NoticeOfAWriterThatDiedIsReplaced) {
  AbortNotice notice;
  notice.state.store(AbortNotice::kBeingWritten);
  notice.post("rank 1 was told to stop");
  EXPECT_TRUE(notice.posted());
  EXPECT_EQ(notice.why(), "rank 1 was told to stop");
}

/// Other ranks end with the exit code of the rank that failed, also if its text is too long for the notice.
TEST(AbortNotice, KeepsTheExitCodeOfTheReason) {
  for (const auto& [code, text] : {std::pair<ExitCode, std::string>{ExitCode::kUsage, "rank 1 failed: wrong"},
                                   {ExitCode::kFault, "rank 1 failed: gone"},
                                   {ExitCode::kUnavailable, std::string(100'000, 'a')}}) {
    AbortNotice notice;
    notice.post(abort_reason(code, text));
    try {
      throw_abort(notice.why());
    } catch (const CommunicationError& error) {
      EXPECT_EQ(error.exit_code(), code);
      const std::string found = error.what();
      EXPECT_GT(found.size(), 10u);
      EXPECT_TRUE(text.starts_with(found)) << found;
    }
  }
}

TEST(SharedText, TruncatesLongText) {
  SharedText text{};
  write_shared(text, std::string(100, 'a'));
  EXPECT_EQ(read_shared(text), std::string(40, 'a'));
  write_shared(text, "short");
  EXPECT_EQ(read_shared(text), "short");
  write_shared(text, {});
  EXPECT_EQ(read_shared(text), "");
}

TEST(OperationDescription, UnpackRestoresAPackedDescription) {
  const OperationDescription description{.kind = OperationDescription::Kind::kAllGather,
                                         .dtype = DType::kBFloat16,
                                         .detail = 1,
                                         .fingerprint = uint64_t{0xA5} << 56,
                                         .count = (int64_t{1} << 40) - 1};
  const auto back = OperationDescription::unpack(description.packed());
  EXPECT_EQ(back.packed(), description.packed());
  EXPECT_EQ(back.fingerprint, description.fingerprint);
  EXPECT_EQ(back.count, description.count);
  EXPECT_EQ(back.text(), "all-gather of 1099511627775 bytes in place");
}

TEST(OperationDescription, EveryUnitHasADifferentFingerprint) {
  std::set<uint64_t> fingerprints;
  for (int unit = 0; unit < 1000; ++unit)
    fingerprints.insert(describe_all_gather_in_place({nullptr, 0}, 4096, {"h." + std::to_string(unit), 3}).fingerprint);
  EXPECT_EQ(fingerprints.size(), 1000u);
}

TEST(OperationDescription, DiffersByUnitOffsetAndOperation) {
  const auto gather = [](std::string_view label, int64_t to, int64_t from) {
    return describe_all_gather({nullptr, to}, {nullptr, from}, 4096, {label, 3}).packed();
  };
  const auto one = gather("h.1", 0, 512);
  EXPECT_EQ(one, gather("h.1", 0, 512));
  EXPECT_NE(one, gather("h.2", 0, 512));
  EXPECT_NE(one, gather("h.1", 512, 512));
  EXPECT_NE(one, gather("h.1", 0, 1024));
  EXPECT_NE(one, describe_all_gather_in_place({nullptr, 0}, 4096, {"h.1", 3}).packed());
}

/// A board of two ranks, in the test's own memory.
struct BoardOfTwo final : NodeMapping {
  BoardOfTwo() {
    writable = reinterpret_cast<std::byte*>(&layout);
    readable = writable;
    size_bytes = Board::size_bytes(2);
  }
  struct {
    AbortNotice notice;
    RankBoard ranks[2];
  } layout;
};

/// An exception unwinds the stack while a stream waits for a rank that never arrives. The wait must end immediately and
/// not at the deadline.
TEST(Signals, UnwindingEndsAWaitForAnotherRank) {
  const auto device = make_host_device(1);
  const auto signals = make_host_signals(std::make_unique<BoardOfTwo>(), {.rank_count = 2});
  const auto started = std::chrono::steady_clock::now();
  EXPECT_THROW(
      {
        const auto stream = device->make_stream(Lane::kGather);
        signals->publish(*stream, 1);  // rank 0 arrives, rank 1 never does
        signals->await_progress(*stream, Lane::kGather, 1, {"h.0", 1});
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the stream begins its wait
        throw std::runtime_error("unwinding");
      },
      std::runtime_error);
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(60))
      << "the wait did not end when the stack unwound";
}

}  // namespace
}  // namespace aliquot
