// Compares the loops of every instruction set with the plain loops, and the plain loops with their documentation.
#include "kernels/elementwise/host_loops.h"

#include <cmath>
#include <cstdlib>
#include <gtest/gtest.h>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/elementwise/host_loops_tables.h"
#include "kernels/formats/split_master.h"
#include "kernels/system/error.h"
#include "tests/kernels/elementwise/loops_data.h"

namespace aliquot {
namespace {

class EveryIsa : public testing::TestWithParam<Isa> {
 protected:
  const HostLoops& loops() const { return host_loops(GetParam()); }
  const HostLoops& plain() const { return host_loops(Isa::kPlain); }

  // Calls work(count, misaligned) for all counts. `misaligned` is the distance of the data from a cache line, in
  // elements.
  template <typename Work>
  void for_shapes(Work work) {
    for (const int64_t count : kCounts) {
      for (const int64_t misaligned : {0, 1, 3}) work(count, misaligned);
    }
  }
};

TEST_P(EveryIsa, CopiesExactly) {
  for_shapes([&](int64_t count, int64_t misaligned) {
    Elements from(DType::kUInt8, 5 * count, misaligned), to(DType::kUInt8, 5 * count, 3 - misaligned);
    for (int64_t i = 0; i < from.count(); ++i) from.data()[i] = std::byte(hash_bits(static_cast<uint64_t>(i)) & 0xff);
    loops().copy(to.data(), from.data(), from.size_bytes());
    EXPECT_TRUE(same_bytes(to, from)) << count;
    EXPECT_TRUE(to.guards_intact()) << count;
  });
}

TEST_P(EveryIsa, FillsIntegersWithRoundedAndClampedValues) {
  struct Case {
    float value;
    int16_t as_int16;
    uint8_t as_uint8;
  };
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Case& c : {Case{-2.9f, -2, 0}, Case{300.5f, 300, 255}, Case{1e9f, 32767, 255}, Case{-1e9f, -32768, 0},
                        Case{infinity, 32767, 255}, Case{-infinity, -32768, 0}, Case{std::nanf(""), 0, 0}}) {
    int16_t wide[100] = {};
    uint8_t narrow[100] = {};
    loops().fill(wide, DType::kInt16, c.value, 100);
    loops().fill(narrow, DType::kUInt8, c.value, 100);
    for (const int16_t element : wide) ASSERT_EQ(element, c.as_int16) << c.value;
    for (const uint8_t element : narrow) ASSERT_EQ(element, c.as_uint8) << c.value;
  }
}

TEST_P(EveryIsa, FillsEveryType) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64, DType::kInt16, DType::kUInt8}) {
    for_shapes([&](int64_t count, int64_t misaligned) {
      Elements to(dtype, count, misaligned), expected(dtype, count);
      const double wide = 3.0;
      const float single = 3.0f;
      const uint16_t sixteen = dtype == DType::kBFloat16 ? 0x4040 : dtype == DType::kFloat16 ? 0x4200 : 3;
      const uint8_t eight = 3;
      const void* element = dtype == DType::kFloat64   ? static_cast<const void*>(&wide)
                            : dtype == DType::kFloat32 ? static_cast<const void*>(&single)
                            : dtype == DType::kUInt8   ? static_cast<const void*>(&eight)
                                                       : static_cast<const void*>(&sixteen);
      const auto width = static_cast<std::size_t>(element_bytes(dtype));
      for (int64_t i = 0; i < count; ++i)
        std::memcpy(expected.data() + static_cast<std::size_t>(i) * width, element, width);
      loops().fill(to.data(), dtype, 3.0f, count);
      EXPECT_TRUE(same_bytes(to, expected)) << name(dtype) << count;
      EXPECT_TRUE(to.guards_intact()) << name(dtype) << count;
    });
  }
}

TEST_P(EveryIsa, ScaleAddAndAxpyRoundAfterEachOperation) {
  for (const ValueKind values : {ValueKind::kOrdinary, ValueKind::kSpecial}) {
    for_shapes([&](int64_t count, int64_t misaligned) {
      Elements x(DType::kFloat32, count, misaligned), y(DType::kFloat32, count, 2 * misaligned);
      fill_values(x, values, 1);
      fill_values(y, values, 2);
      Elements scaled = x, added = y, combined = y;
      const float factor = 1.1f;
      for (int64_t i = 0; i < count; ++i) {
        volatile float product = x.value(i) * factor;  // volatile, so the product is rounded before it is used
        scaled.as<float>()[i] = product;
        added.as<float>()[i] = y.value(i) + x.value(i);
        combined.as<float>()[i] = y.value(i) + product;
      }
      Elements got = x;
      loops().scale(got.as<float>(), factor, count);
      expect_same_values(got, scaled);
      EXPECT_TRUE(got.guards_intact());
      got = y;
      loops().add(got.as<float>(), x.as<float>(), count);
      expect_same_values(got, added);
      EXPECT_TRUE(got.guards_intact());
      got = y;
      loops().axpy(got.as<float>(), factor, x.as<float>(), count);
      expect_same_values(got, combined);
      EXPECT_TRUE(got.guards_intact());
    });
  }
}

TEST_P(EveryIsa, CastsBetweenAllFloatTypesLikeThePlainLoops) {
  for (const DType from_dtype : kFloatTypes) {
    for (const DType to_dtype : kFloatTypes) {
      for_shapes([&](int64_t count, int64_t misaligned) {
        Elements from(from_dtype, count, misaligned), to(to_dtype, count, 1 + misaligned), expected(to_dtype, count);
        fill_values(from, ValueKind::kSpecial, 3);
        plain().cast(expected.data(), to_dtype, from.data(), from_dtype, count);
        loops().cast(to.data(), to_dtype, from.data(), from_dtype, count);
        EXPECT_TRUE(same_bytes(to, expected)) << name(from_dtype) << " to " << name(to_dtype) << ", " << count;
        EXPECT_TRUE(to.guards_intact());
      });
    }
  }
}

// Results of 4 MiB or more are written with non-temporal stores.
TEST_P(EveryIsa, CastsArraysAboveTheNonTemporalThreshold) {
  constexpr int64_t kCount = 2'200'001;
  for (const int64_t misaligned : {0, 5}) {
    for (const auto& [from_dtype, to_dtype] :
         {std::pair(DType::kFloat32, DType::kBFloat16), std::pair(DType::kFloat16, DType::kFloat32)}) {
      Elements from(from_dtype, kCount, 1), to(to_dtype, kCount, misaligned), expected(to_dtype, kCount);
      fill_values(from, ValueKind::kSpecial, 8);
      plain().cast(expected.data(), to_dtype, from.data(), from_dtype, kCount);
      loops().cast(to.data(), to_dtype, from.data(), from_dtype, kCount);
      EXPECT_TRUE(same_bytes(to, expected));
      EXPECT_TRUE(to.guards_intact());
    }
  }
}

TEST_P(EveryIsa, SplitsAndMergesArraysAboveTheNonTemporalThreshold) {
  constexpr int64_t kCount = 2'200'001;
  Elements master(DType::kFloat32, kCount), high(DType::kBFloat16, kCount), low(DType::kInt16, kCount);
  Elements alone(DType::kBFloat16, kCount), merged(DType::kFloat32, kCount);
  fill_values(master, ValueKind::kSpecial, 9);
  loops().split(high.as<uint16_t>(), low.as<int16_t>(), master.as<float>(), kCount);
  loops().split(alone.as<uint16_t>(), nullptr, master.as<float>(), kCount);
  loops().merge(merged.as<float>(), high.as<uint16_t>(), low.as<int16_t>(), kCount);
  for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(high.as<uint16_t>()[i], master_high(master.as<float>()[i])) << i;
  EXPECT_TRUE(same_bytes(alone, high));
  EXPECT_TRUE(same_bytes(merged, master));
  EXPECT_TRUE(high.guards_intact() && low.guards_intact() && merged.guards_intact() && alone.guards_intact());
}

// Samples the fp32 values so that every exponent, ties and every kind of NaN occur.
TEST_P(EveryIsa, CastRoundsLikeTheScalarFunctions) {
  constexpr int64_t kCount = 1 << 16;
  Elements from(DType::kFloat32, kCount), bf16(DType::kBFloat16, kCount), fp16(DType::kFloat16, kCount);
  for (uint64_t start = 0; start < (uint64_t{1} << 32); start += uint64_t{4099} * kCount) {
    for (int64_t i = 0; i < kCount; ++i) {
      const auto bits = static_cast<uint32_t>(start + 4099u * static_cast<uint64_t>(i));
      from.as<float>()[i] = float_from_bits(i % 4 == 0 ? bits & 0xffff8000u : bits);
    }
    loops().cast(bf16.data(), DType::kBFloat16, from.data(), DType::kFloat32, kCount);
    loops().cast(fp16.data(), DType::kFloat16, from.data(), DType::kFloat32, kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      const float x = from.as<float>()[i];
      ASSERT_EQ(bf16.as<uint16_t>()[i], float_to_bf16(x)) << std::hex << float_bits(x);
      ASSERT_EQ(fp16.as<uint16_t>()[i], float_to_fp16(x)) << std::hex << float_bits(x);
    }
  }
}

TEST_P(EveryIsa, MergeInvertsSplit) {
  for_shapes([&](int64_t count, int64_t misaligned) {
    Elements master(DType::kFloat32, count, misaligned), high(DType::kBFloat16, count, 1 + misaligned);
    Elements low(DType::kInt16, count, misaligned), merged(DType::kFloat32, count, 2);
    fill_values(master, ValueKind::kSpecial, 4);
    loops().split(high.as<uint16_t>(), low.as<int16_t>(), master.as<float>(), count);
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(high.as<uint16_t>()[i], master_high(master.as<float>()[i])) << i;
      ASSERT_EQ(low.as<int16_t>()[i], master_low(master.as<float>()[i])) << i;
    }
    loops().merge(merged.as<float>(), high.as<uint16_t>(), low.as<int16_t>(), count);
    EXPECT_TRUE(same_bytes(merged, master)) << count;
    Elements high_alone(DType::kBFloat16, count, misaligned);
    loops().split(high_alone.as<uint16_t>(), nullptr, master.as<float>(), count);
    EXPECT_TRUE(same_bytes(high_alone, high)) << count;
    EXPECT_TRUE(high.guards_intact() && low.guards_intact() && merged.guards_intact() && high_alone.guards_intact());
  });
}

TEST_P(EveryIsa, FindsTheFirstNonfiniteElement) {
  for (const DType dtype : kFloatTypes) {
    for_shapes([&](int64_t count, int64_t misaligned) {
      Elements x(dtype, count, misaligned);
      fill_values(x, ValueKind::kOrdinary, 5);
      EXPECT_EQ(loops().find_nonfinite(x.data(), dtype, count), count);
      // The positions descend, so that each new nonfinite element is the first one in the array.
      for (int64_t at = count - 1; at >= 0; at -= 1 + at / 3) {
        const uint32_t infinity = dtype == DType::kFloat16    ? 0x7c00u
                                  : dtype == DType::kBFloat16 ? 0x7f80u
                                                              : 0x7f800000u;
        const uint32_t bits = infinity | (at % 2 == 0 ? 0u : 1u);  // an infinity or a signalling NaN
        std::memcpy(x.data() + at * element_bytes(dtype), &bits, static_cast<std::size_t>(element_bytes(dtype)));
        ASSERT_EQ(loops().find_nonfinite(x.data(), dtype, count), at) << name(dtype) << " " << count;
      }
    });
  }
}

TEST_P(EveryIsa, LargestFiniteNumbersAreFinite) {
  Elements fp32(DType::kFloat32, 100), bf16(DType::kBFloat16, 100), fp16(DType::kFloat16, 100);
  for (int64_t i = 0; i < 100; ++i) {
    fp32.as<float>()[i] = float_from_bits(0xff7fffffu);
    bf16.as<uint16_t>()[i] = 0x7f7f;
    fp16.as<uint16_t>()[i] = 0xfbff;
  }
  for (const Elements* x : {&fp32, &bf16, &fp16}) EXPECT_EQ(loops().find_nonfinite(x->data(), x->dtype(), 100), 100);
}

std::vector<uint64_t> digests_of(const HostLoops& loops, const std::vector<std::byte>& data, int64_t block_bytes) {
  std::vector<uint64_t> digests((data.size() + static_cast<size_t>(block_bytes) - 1) /
                                static_cast<size_t>(block_bytes));
  loops.block_digests(digests.data(), data.data(), block_bytes, std::ssize(data));
  return digests;
}

TEST_P(EveryIsa, BlockDigestsAreThoseOfThePlainLoop) {
  for (const int64_t block_bytes : {4, 256, 512, 1024}) {
    for (const int64_t size_bytes : {0, 1, 2, 31, 64, 1022, 1024, 4096, 5000}) {
      std::vector<std::byte> data(static_cast<size_t>(size_bytes));
      for (size_t i = 0; i < data.size(); ++i) data[i] = std::byte(hash_bits(i) & 0xff);
      const auto digests = digests_of(loops(), data, block_bytes);
      EXPECT_EQ(digests, digests_of(plain(), data, block_bytes)) << block_bytes << " " << size_bytes;
      data.resize(digests.size() * static_cast<size_t>(block_bytes));
      EXPECT_EQ(digests, digests_of(loops(), data, block_bytes)) << "a block that ends with zeros has another digest";
    }
  }
}

TEST_P(EveryIsa, EveryChangeOfOneWordChangesTheDigestOfItsBlock) {
  constexpr int64_t kBlock = 1024;
  std::vector<std::byte> data(3 * kBlock);
  for (size_t i = 0; i < data.size(); ++i) data[i] = std::byte(hash_bits(i) & 0xff);
  const auto before = digests_of(loops(), data, kBlock);
  for (size_t bit = 0; bit < 8 * static_cast<size_t>(kBlock); ++bit) {
    std::byte& changed = data[static_cast<size_t>(kBlock) + bit / 8];
    changed ^= std::byte(1u << bit % 8);
    const auto after = digests_of(loops(), data, kBlock);
    ASSERT_NE(after[1], before[1]) << "bit " << bit;
    ASSERT_EQ(after[0], before[0]);
    ASSERT_EQ(after[2], before[2]);
    changed ^= std::byte(1u << bit % 8);
  }
  std::swap(data[0], data[64]);  // in the same lane
  EXPECT_NE(digests_of(loops(), data, kBlock)[0], before[0]);
}

TEST_P(EveryIsa, RejectsIntegerTypes) {
  uint8_t bytes[64] = {};
  EXPECT_THROW(loops().cast(bytes, DType::kFloat32, bytes, DType::kInt16, 4), std::logic_error);
  EXPECT_THROW(loops().cast(bytes, DType::kUInt8, bytes, DType::kFloat32, 4), std::logic_error);
  EXPECT_THROW(loops().find_nonfinite(bytes, DType::kInt16, 4), std::logic_error);
}

INSTANTIATE_TEST_SUITE_P(HostLoops, EveryIsa, testing::ValuesIn(available_isas().begin(), available_isas().end()),
                         [](const auto& isa) { return std::string(name(isa.param)); });

TEST(HostIsa, PlainIsAlwaysAvailableAndBestHasATable) {
  ASSERT_FALSE(available_isas().empty());
  EXPECT_EQ(available_isas().front(), Isa::kPlain);
  EXPECT_NO_THROW(host_loops(best_isa()));
}

TEST(HostLoops, TheEnvironmentCannotChooseMoreThanTheProcessorSupports) {
  EXPECT_EQ(choose_isa(nullptr, Isa::kAvx2), Isa::kAvx2);
  EXPECT_EQ(choose_isa("", Isa::kAvx2), Isa::kAvx2);
  EXPECT_EQ(choose_isa("plain", Isa::kAvx2), Isa::kPlain);
  EXPECT_EQ(choose_isa("avx2", Isa::kAvx512), Isa::kAvx2);
  EXPECT_EQ(choose_isa("avx512", Isa::kAvx2), Isa::kAvx2);
  EXPECT_EQ(choose_isa("avx512", Isa::kPlain), Isa::kPlain);
}

TEST(HostLoops, TheErrorForAnUnknownInstructionSetNamesIt) {
  for (const char* wanted : {"sse9", "AVX2", "avx512 "}) {
    try {
      choose_isa(wanted, Isa::kAvx512);
      FAIL() << "accepted ALIQUOT_ISA=" << wanted;
    } catch (const UsageError& error) {
      EXPECT_EQ(error.what(),
                "invalid value '" + std::string(wanted) + "' for ALIQUOT_ISA: expected plain, avx2 or avx512");
    }
  }
}

}  // namespace
}  // namespace aliquot
