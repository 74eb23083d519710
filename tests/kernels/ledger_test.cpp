#include "kernels/ledger.h"

#include <gtest/gtest.h>

#include "kernels/device.h"
#include "kernels/error.h"

namespace aliquot {
namespace {

int64_t of(const BytesByCategory& bytes, Category category) { return bytes[static_cast<std::size_t>(category)]; }

TEST(Ledger, CountsByCategoryNowAndAtThePeak) {
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

TEST(Ledger, NamesWhatIsLeftTheLargestFirst) {
  Ledger ledger;
  ledger.acquire(Category::kSlots, 10, "small");
  const auto gone = ledger.acquire(Category::kSlots, 99, "gone");
  ledger.acquire(Category::kOptimizer, 20, "large");
  ledger.release(gone);
  const auto left = ledger.entries();
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].owner, "large");
  EXPECT_EQ(left[0].category, Category::kOptimizer);
  EXPECT_EQ(left[1].owner, "small");
}

TEST(Ledger, HoldsNoMoreThanItsLimitAndSaysWhoAsked) {
  Ledger ledger;
  ledger.set_limit_bytes(100);
  ledger.hold(60, "first");
  try {
    ledger.hold(41, "the arena");
    FAIL() << "the limit was passed";
  } catch (const UnavailableError& error) {
    EXPECT_STREQ(error.what(), "the arena needs 41 bytes, but the limit is 100 bytes and 60 are held already");
  }
  EXPECT_EQ(ledger.held_bytes(), 60);
  ledger.hold(40, "just fits");
  ledger.let_go(60);
  EXPECT_EQ(ledger.held_bytes(), 40);
  EXPECT_EQ(ledger.held_peak_bytes(), 100);
}

TEST(HostDevice, BooksWhatItAllocates) {
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

TEST(HostDevice, AMovedBufferIsFreedOnce) {
  const auto device = make_host_device(1);
  Buffer a = device->allocate(100, Category::kSlots, "a");
  Buffer b = std::move(a);
  a = device->allocate(50, Category::kSlots, "b");
  b = std::move(a);
  EXPECT_EQ(device->ledger().held_bytes(), 50);
}

TEST(HostDevice, AllocationsStopAtTheLimit) {
  const auto device = make_host_device(1);
  device->ledger().set_limit_bytes(1 << 20);
  EXPECT_THROW(device->allocate((1 << 20) + 1, Category::kSlots, "slots"), UnavailableError);
  EXPECT_EQ(device->ledger().in_use_bytes(), 0);
}

}  // namespace
}  // namespace aliquot
