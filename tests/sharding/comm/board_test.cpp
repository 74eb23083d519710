// What lies in memory that ranks share: notices, texts and descriptions; and waiting for a rank by it.
#include "sharding/comm/board.h"

#include <chrono>
#include <gtest/gtest.h>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "kernels/device/device.h"
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

TEST(AbortNotice, AWriterThatDiedIsReplaced) {
  AbortNotice notice;
  notice.state.store(AbortNotice::kBeingWritten);
  notice.post("rank 1 was told to stop");
  EXPECT_TRUE(notice.posted());
  EXPECT_EQ(notice.why(), "rank 1 was told to stop");
}

TEST(SharedText, CutsWhatIsTooLong) {
  SharedText text{};
  write_shared(text, std::string(100, 'a'));
  EXPECT_EQ(read_shared(text), std::string(40, 'a'));
  write_shared(text, "short");
  EXPECT_EQ(read_shared(text), "short");
  write_shared(text, {});
  EXPECT_EQ(read_shared(text), "");
}

TEST(OperationDescription, SurvivesBeingPacked) {
  const OperationDescription what{.kind = OperationDescription::Kind::kAllGather,
                                  .dtype = DType::kBFloat16,
                                  .detail = 1,
                                  .fingerprint = uint64_t{0xA5} << 56,
                                  .count = (int64_t{1} << 40) - 1};
  const auto back = OperationDescription::unpack(what.packed());
  EXPECT_EQ(back.packed(), what.packed());
  EXPECT_EQ(back.fingerprint, what.fingerprint);
  EXPECT_EQ(back.count, what.count);
  EXPECT_EQ(back.text(), "all-gather of 1099511627775 bytes in place");
}

/// Of many units, none is taken for another.
TEST(OperationDescription, EveryUnitHasAMarkOfItsOwn) {
  std::set<uint64_t> fingerprints;
  for (int unit = 0; unit < 1000; ++unit)
    fingerprints.insert(describe_all_gather_in_place({nullptr, 0}, 4096, {"h." + std::to_string(unit), 3}).fingerprint);
  EXPECT_EQ(fingerprints.size(), 1000u);
}

TEST(OperationDescription, TellsPurposeAndPlaceApart) {
  const auto gather = [](std::string_view what, int64_t to, int64_t from) {
    return describe_all_gather({nullptr, to}, {nullptr, from}, 4096, {what, 3}).packed();
  };
  const auto one = gather("h.1", 0, 512);
  EXPECT_EQ(one, gather("h.1", 0, 512));
  EXPECT_NE(one, gather("h.2", 0, 512));
  EXPECT_NE(one, gather("h.1", 512, 512));
  EXPECT_NE(one, gather("h.1", 0, 1024));
  EXPECT_NE(one, describe_all_gather_in_place({nullptr, 0}, 4096, {"h.1", 3}).packed());
}

/// The board of two ranks, in a test's own memory.
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

/// An exception leaves a program while a stream of its waits for a rank that will not come: nobody waits out the deadline.
TEST(Signals, UnwindingEndsAWaitForAnotherRank) {
  const auto device = make_host_device(1);
  const auto signals = make_host_signals(std::make_unique<BoardOfTwo>(), {.rank_count = 2});
  const auto started = std::chrono::steady_clock::now();
  EXPECT_THROW(
      {
        const auto stream = device->make_stream(Lane::kGather);
        signals->publish(*stream, 1);  // rank 0 is there, and rank 1 is missing
        signals->await_progress(*stream, Lane::kGather, 1, {"h.0", 1});
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // so that it waits by now
        throw std::runtime_error("unwinding");
      },
      std::runtime_error);
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(60)) << "the deadline is 600";
}

}  // namespace
}  // namespace aliquot
