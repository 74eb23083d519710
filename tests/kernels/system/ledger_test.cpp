#include "kernels/system/ledger.h"

#include <gtest/gtest.h>
#include <limits>
#include <stdexcept>

#include "kernels/device/device.h"
#include "kernels/system/booking.h"
#include "kernels/system/error.h"
#include "kernels/system/log.h"

namespace aliquot {
namespace {

// Tests below read log messages from standard error.
const LogSink kInitialLogSink = set_log_sink(log_to_standard_error);

TEST(Log, PrintsNothingUntilASinkIsSet) {
  EXPECT_EQ(kInitialLogSink, nullptr);
  set_log_sink(nullptr);
  testing::internal::CaptureStderr();
  {
    Ledger ledger;
    ledger.hold(Category::kArena, 10, "arena");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  static std::string logged;
  EXPECT_EQ(set_log_sink([](std::string_view message) noexcept { logged = message; }), nullptr);
  {
    Ledger ledger;
    ledger.hold(Category::kArena, 10, "arena");
  }
  set_log_sink(log_to_standard_error);
  EXPECT_EQ(logged, "memory was never released: arena, 10 bytes, category arena");
}

int64_t of(const BytesByCategory& bytes, Category category) { return bytes[static_cast<std::size_t>(category)]; }

TEST(Ledger, CountsCurrentAndPeakBytesByCategory) {
  Ledger ledger;
  const auto a = ledger.acquire(Category::kSlots, 100, "h.0");
  const auto b = ledger.acquire(Category::kGradients, 50, "h.0");
  ledger.release(a);
  const auto c = ledger.acquire(Category::kSlots, 30, "h.1");
  EXPECT_EQ(of(ledger.current(), Category::kSlots), 30);
  EXPECT_EQ(of(ledger.peak(), Category::kSlots), 100);
  EXPECT_EQ(of(ledger.current(), Category::kGradients), 50);
  EXPECT_EQ(ledger.in_use_bytes(), 80);
  EXPECT_EQ(ledger.in_use_peak_bytes(), 150);
  ledger.release(b);
  ledger.release(c);
  EXPECT_EQ(ledger.in_use_bytes(), 0);
  ledger.reset_peaks();
  EXPECT_EQ(ledger.in_use_peak_bytes(), 0);
}

TEST(Ledger, ListsRemainingEntriesLargestFirst) {
  Ledger ledger;
  ledger.acquire(Category::kSlots, 10, "small");
  const auto released = ledger.acquire(Category::kSlots, 99, "released");
  ledger.acquire(Category::kOptimizer, 20, "large");
  ledger.release(released);
  const auto left = ledger.entries();
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].owner, "large");
  EXPECT_EQ(left[0].category, Category::kOptimizer);
  EXPECT_EQ(left[1].owner, "small");
}

TEST(Ledger, AHoldAboveTheLimitThrowsAndNamesTheOwner) {
  Ledger ledger;
  ledger.set_limit_bytes(100);
  const auto first = ledger.hold(Category::kSlots, 60, "first");
  try {
    ledger.hold(Category::kArena, 41, "the arena");
    FAIL() << "hold() exceeded the limit";
  } catch (const UnavailableError& error) {
    EXPECT_STREQ(error.what(), "cannot allocate 41 bytes for the arena: the limit is 100 bytes, and 60 are allocated");
  }
  EXPECT_EQ(ledger.held_bytes(), 60);
  const auto fits = ledger.hold(Category::kArena, 40, "just fits");
  ledger.let_go(first);
  EXPECT_EQ(ledger.held_bytes(), 40);
  EXPECT_EQ(ledger.held_peak_bytes(), 100);
  ledger.let_go(fits);
}

constexpr int64_t kMaxBytes = std::numeric_limits<int64_t>::max();

TEST(Ledger, HugeSizesAreRejectedWithoutOverflow) {
  for (const int64_t limit_bytes : {int64_t{0}, int64_t{100}, kMaxBytes}) {
    Ledger ledger;
    ledger.set_limit_bytes(limit_bytes);
    const auto held = ledger.hold(Category::kArena, 60, "first");
    const auto used = ledger.acquire(Category::kSlots, 60, "first");
    for (const int64_t size_bytes : {kMaxBytes, kMaxBytes - 59}) {
      EXPECT_THROW(ledger.hold(Category::kArena, size_bytes, "huge"), UnavailableError);
      EXPECT_THROW(ledger.acquire(Category::kSlots, size_bytes, "huge"), UnavailableError);
    }
    EXPECT_EQ(ledger.held_bytes(), 60);
    EXPECT_EQ(ledger.in_use_bytes(), 60);
    ledger.release(used);
    ledger.let_go(held);
  }
}

TEST(Ledger, ANegativeSizeThrowsLogicError) {
  Ledger ledger;
  EXPECT_THROW(ledger.hold(Category::kArena, -1, "negative"), std::logic_error);
  EXPECT_THROW(ledger.acquire(Category::kSlots, -1, "negative"), std::logic_error);
  EXPECT_THROW(ledger.set_limit_bytes(-1), std::logic_error);
  EXPECT_EQ(ledger.held_bytes(), 0);
  EXPECT_EQ(ledger.in_use_bytes(), 0);
}

TEST(Ledger, ACallThatThrowsCountsNothing) {
  Ledger ledger;
  // The view is too long for a std::string, so the ledger throws before it reads the view.
  const std::string_view endless("x", std::numeric_limits<std::size_t>::max());
  EXPECT_THROW(ledger.acquire(Category::kSlots, 10, endless), std::length_error);
  EXPECT_THROW(ledger.hold(Category::kSlots, 10, endless), std::length_error);
  EXPECT_TRUE(ledger.entries().empty());
  EXPECT_EQ(ledger.in_use_bytes(), 0);
  EXPECT_EQ(ledger.held_bytes(), 0);
  const auto first = ledger.acquire(Category::kSlots, 10, "first"),
             second = ledger.acquire(Category::kSlots, 5, "second");
  EXPECT_NE(first, second);
  EXPECT_EQ(ledger.entries().at(0).owner, "first");
  ledger.release(first);
  ledger.release(second);
}

TEST(Ledger, ABookingThatThrowsCountsNothing) {
  Ledger ledger;
  const auto most = ledger.acquire(Category::kSlots, kMaxBytes - 5, "most");
  EXPECT_THROW(Booking(ledger, 10, Category::kSlots, "too large to count"), UnavailableError);
  EXPECT_EQ(ledger.held_bytes(), 0);
  ledger.release(most);
}

TEST(Ledger, ASecondReleaseIsLoggedAndIgnored) {
  Ledger ledger;
  const auto first = ledger.acquire(Category::kSlots, 10, "first");
  ledger.release(first);
  const auto second = ledger.acquire(Category::kSlots, 20, "second");  // reuses the slot of `first`
  testing::internal::CaptureStderr();
  ledger.release(first);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("Ledger::release() was called twice"), std::string::npos);
  EXPECT_EQ(ledger.in_use_bytes(), 20);
  ledger.release(second);
  const auto held = ledger.hold(Category::kArena, 10, "arena");
  ledger.let_go(held);
  testing::internal::CaptureStderr();
  ledger.let_go(held);
  ledger.let_go(-1);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("Ledger::let_go() was called twice"), std::string::npos);
  EXPECT_EQ(ledger.held_bytes(), 0);
}

TEST(HostDevice, CountsAllocationsInItsLedger) {
  const auto device = make_host_device(1);
  {
    const Buffer buffer = device->allocate(1000, Category::kOptimizer, "moments");
    const Buffer arena = device->allocate(5000, Category::kArena, "arena");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kBufferAlignmentBytes, 0u);
    EXPECT_EQ(device->ledger().held_bytes(), 6000);
    EXPECT_EQ(device->ledger().in_use_bytes(), 1000);
    EXPECT_EQ(device->ledger().entries().at(0).owner, "moments");
  }
  EXPECT_EQ(device->ledger().held_bytes(), 0);
  EXPECT_EQ(device->ledger().in_use_bytes(), 0);
}

TEST(HostDevice, LogsUnreleasedMemoryAtItsDestruction) {
  auto device = make_host_device(1);
  (void)device->allocate(77, Category::kSlots, "released at once");
  Ledger& ledger = device->ledger();
  ledger.hold(Category::kArena, 5000, "arena");
  ledger.hold(Category::kOptimizer, 1000, "moments");
  testing::internal::CaptureStderr();
  device.reset();
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "aliquot: memory was never released: arena, 5000 bytes, category arena\n"
            "aliquot: memory was never released: moments, 1000 bytes, category optimizer\n");
}

TEST(HostDevice, LogsNothingWhileAnExceptionUnwinds) {
  testing::internal::CaptureStderr();
  EXPECT_THROW(
      {
        const auto device = make_host_device(1);
        device->ledger().hold(Category::kCommunication, 64, "receive buffer");
        throw std::runtime_error("a rank failed");
      },
      std::runtime_error);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(HostDevice, HugeSizesAreRejectedWithoutOverflow) {
  const auto device = make_host_device(1);
  for (const int64_t limit_bytes : {0, 1000}) {
    device->ledger().set_limit_bytes(limit_bytes);
    EXPECT_THROW(device->allocate(kMaxBytes, Category::kSlots, "huge"), UnavailableError);
    EXPECT_THROW(device->allocate(-1, Category::kSlots, "negative"), std::logic_error);
  }
  EXPECT_EQ(device->ledger().held_bytes(), 0);
  EXPECT_EQ(device->ledger().in_use_bytes(), 0);
}

TEST(HostDevice, AMovedBufferIsFreedOnce) {
  const auto device = make_host_device(1);
  Buffer a = device->allocate(100, Category::kSlots, "a");
  Buffer b = std::move(a);
  a = device->allocate(50, Category::kSlots, "b");
  b = std::move(a);
  EXPECT_EQ(device->ledger().held_bytes(), 50);
}

TEST(HostDevice, AnAllocationAboveTheLimitThrows) {
  const auto device = make_host_device(1);
  device->ledger().set_limit_bytes(1 << 20);
  EXPECT_THROW(device->allocate((1 << 20) + 1, Category::kSlots, "slots"), UnavailableError);
  EXPECT_EQ(device->ledger().in_use_bytes(), 0);
}

}  // namespace
}  // namespace aliquot
