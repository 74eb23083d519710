// Compares the kernels of every device with the plain loops on the host. The bits must not depend on the device, its
// threads or the stream.
#include "kernels/elementwise/kernels.h"

#include <cmath>
#include <gtest/gtest.h>
#include <memory>
#include <stdexcept>
#include <vector>

#include "kernels/elementwise/block_digest.h"
#include "tests/kernels/elementwise/every_device.h"

namespace aliquot {
namespace {

TEST_P(EveryDevice, FillsAndCopiesLikeThePlainLoops) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64, DType::kInt16, DType::kUInt8}) {
    // All bytes of 0 are equal in every type, and those of 257 in int16. Those of -0 differ in floating-point types.
    for (const float value : {5.0f, 0.0f, -0.0f, 257.0f}) {
      for_shapes([&](int64_t count, int64_t misaligned) {
        Elements filled(dtype, count, misaligned), copied(dtype, count, misaligned), expected(dtype, count);
        plain().fill(expected.data(), dtype, value, count);
        DeviceArray a(*device_, stream(), filled), b(*device_, stream(), copied);
        kernels().fill(stream(), a.data(), dtype, value, count);
        kernels().copy(stream(), b.data(), a.data(), filled.size_bytes());
        a.fetch();
        b.fetch();
        EXPECT_TRUE(same_bytes(filled, expected)) << name(dtype) << " " << count << " " << value;
        EXPECT_TRUE(same_bytes(copied, expected)) << name(dtype) << " " << count << " " << value;
      });
    }
  }
}

TEST_P(EveryDevice, ScaleAddAndAxpyMatchThePlainLoops) {
  for_shapes([&](int64_t count, int64_t misaligned) {
    Elements x(DType::kFloat32, count, misaligned), y(DType::kFloat32, count, 2 * misaligned);
    fill_values(x, ValueKind::kSpecial, 1);
    fill_values(y, ValueKind::kSpecial, 2);
    Elements expected = y, got = y;
    plain().scale(expected.as<float>(), 1.1f, count);
    plain().add(expected.as<float>(), x.as<float>(), count);
    plain().axpy(expected.as<float>(), -0.7f, x.as<float>(), count);
    DeviceArray to(*device_, stream(), got), from(*device_, stream(), x);
    kernels().scale(stream(), to.as<float>(), 1.1f, count);
    kernels().add(stream(), to.as<float>(), from.as<float>(), count);
    kernels().axpy(stream(), to.as<float>(), -0.7f, from.as<float>(), count);
    to.fetch();
    expect_same_values(got, expected);
  });
}

TEST_P(EveryDevice, CastsBetweenAllFloatTypesLikeThePlainLoops) {
  for (const DType from_dtype : kFloatTypes) {
    for (const DType to_dtype : kFloatTypes) {
      for_shapes([&](int64_t count, int64_t misaligned) {
        Elements from(from_dtype, count, misaligned), expected(to_dtype, count);
        fill_values(from, ValueKind::kSpecial, 3);
        plain().cast(expected.data(), to_dtype, from.data(), from_dtype, count);
        // With a difference of 4 elements, packs of 8 elements of 16 bits are not aligned in both arrays.
        for (const int64_t apart : {0, 4}) {
          Elements got(to_dtype, count, misaligned + apart);
          DeviceArray source(*device_, stream(), from), to(*device_, stream(), got);
          kernels().cast(stream(), to.data(), to_dtype, source.data(), from_dtype, count);
          to.fetch();
          EXPECT_TRUE(same_bytes(got, expected))
              << name(from_dtype) << " to " << name(to_dtype) << ", " << count << ", " << apart << " apart";
        }
      });
    }
  }
}

TEST_P(EveryDevice, SplitsAndMergesLikeThePlainLoops) {
  for_shapes([&](int64_t count, int64_t misaligned) {
    Elements master(DType::kFloat32, count, misaligned), merged(DType::kFloat32, count, 1);
    Elements high(DType::kBFloat16, count, misaligned), alone(DType::kBFloat16, count, misaligned);
    Elements low(DType::kInt16, count, misaligned), expected(DType::kBFloat16, count);
    fill_values(master, ValueKind::kSpecial, 4);
    plain().split(expected.as<uint16_t>(), nullptr, master.as<float>(), count);
    DeviceArray from(*device_, stream(), master), back(*device_, stream(), merged), top(*device_, stream(), high);
    DeviceArray top_alone(*device_, stream(), alone), rest(*device_, stream(), low);
    kernels().split(stream(), top.as<uint16_t>(), rest.as<int16_t>(), from.as<float>(), count);
    kernels().split(stream(), top_alone.as<uint16_t>(), nullptr, from.as<float>(), count);
    kernels().merge(stream(), back.as<float>(), top.as<uint16_t>(), rest.as<int16_t>(), count);
    for (DeviceArray* array : {&top, &top_alone, &rest, &back}) array->fetch();
    EXPECT_TRUE(same_bytes(high, expected)) << count;
    EXPECT_TRUE(same_bytes(alone, expected)) << count;
    EXPECT_TRUE(same_bytes(merged, master)) << count;
  });
}

class EveryDeviceSum : public EveryDevice {
 protected:
  // `own` is the index of the source that the sum overwrites, or -1 for a separate target.
  void check(int64_t source_count, DType from_dtype, DType to_dtype, int64_t count, int64_t misaligned, int64_t own) {
    std::vector<Elements> sources;
    std::vector<std::unique_ptr<DeviceArray>> arrays;
    std::vector<const std::byte*> bases, device_bases;
    sources.reserve(static_cast<std::size_t>(source_count));
    for (int64_t r = 0; r < source_count; ++r) {
      sources.emplace_back(from_dtype, count, misaligned);
      fill_values(sources.back(), r == 1 ? ValueKind::kSpecial : ValueKind::kOrdinary, static_cast<uint64_t>(10 + r));
      arrays.push_back(std::make_unique<DeviceArray>(*device_, stream(), sources.back()));
      bases.push_back(sources.back().data() - 64);
      device_bases.push_back(arrays.back()->data() - 64);
    }
    const int64_t blocks = (count + kBlockElements - 1) / kBlockElements;
    Elements expected(to_dtype, count), expected_squares(DType::kFloat64, blocks);
    TreeSum sum{.bases = bases,
                .offset_bytes = 64,
                .from_dtype = from_dtype,
                .to = expected.data(),
                .to_dtype = to_dtype,
                .count = count,
                .factor = 0.3f,
                .block_squares = expected_squares.as<double>()};
    plain().sum_tree(sum, 0, count);

    Elements other(to_dtype, count, misaligned), squares(DType::kFloat64, blocks);
    DeviceArray to(*device_, stream(), other), sums(*device_, stream(), squares);
    DeviceArray& target = own < 0 ? to : *arrays[static_cast<std::size_t>(own)];
    sum.bases = device_bases;
    sum.to = target.data();
    sum.block_squares = sums.as<double>();
    kernels().sum_tree(stream(), sum);
    target.fetch();
    sums.fetch();
    expect_same_values(own < 0 ? other : sources[static_cast<std::size_t>(own)], expected);
    for (int64_t b = 0; b < blocks; ++b) {
      const double got = squares.as<double>()[b], wanted = expected_squares.as<double>()[b];
      ASSERT_TRUE(got == wanted || (got != got && wanted != wanted)) << "block " << b << " of " << count;
    }
  }
};

TEST_P(EveryDeviceSum, SumsEveryNumberOfSourcesLikeThePlainLoops) {
  for (int64_t k = 1; k <= 17; ++k) {
    SCOPED_TRACE(k);
    check(k, DType::kFloat32, DType::kFloat32, 1025, k % 2, -1);
  }
  for (const int64_t k : {64, 100, 256}) check(k, DType::kBFloat16, DType::kFloat32, 600, 0, -1);
}

TEST_P(EveryDeviceSum, SumsEveryPairOfTypesLikeThePlainLoops) {
  for (const DType from : kFloatTypes) {
    for (const DType to : kFloatTypes) {
      for (const int64_t k : {2, 3, 4, 8}) check(k, from, to, 1999, 0, -1);
    }
  }
}

TEST_P(EveryDeviceSum, SumsEveryCountLikeThePlainLoops) {
  for_shapes(
      [&](int64_t count, int64_t misaligned) { check(2, DType::kFloat32, DType::kFloat32, count, misaligned, -1); });
}

TEST_P(EveryDeviceSum, MayOverwriteASource) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t k : {1, 2, 3, 8, 20}) check(k, dtype, dtype, 5000, 0, k / 2);
  }
}

TEST_P(EveryDevice, BlockSquaresMatchThePlainLoops) {
  for_shapes([&](int64_t count, int64_t misaligned) {
    const int64_t blocks = (count + kBlockElements - 1) / kBlockElements;
    Elements x(DType::kFloat32, count, misaligned), got(DType::kFloat64, blocks), expected(DType::kFloat64, blocks);
    fill_values(x, ValueKind::kOrdinary, 6);
    plain().block_squares(expected.as<double>(), x.as<float>(), count);
    DeviceArray from(*device_, stream(), x), sums(*device_, stream(), got);
    kernels().block_squares(stream(), sums.as<double>(), from.as<float>(), count);
    sums.fetch();
    EXPECT_TRUE(same_bytes(got, expected)) << count;
  });
}

TEST_P(EveryDevice, FindsTheLargestMagnitudeOfEachBlock) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for_shapes([&](int64_t count, int64_t misaligned) {
      const int64_t blocks = (count + kBlockElements - 1) / kBlockElements;
      Elements x(dtype, count, misaligned), got(DType::kFloat64, blocks);
      fill_values(x, ValueKind::kOrdinary, 8);
      if (count > 300) {  // the second block has an infinite element
        const uint32_t infinite = dtype == DType::kBFloat16 ? 0xff80u : 0xff800000u;
        const auto width = static_cast<std::size_t>(element_bytes(dtype));
        std::memcpy(x.data() + 299 * width, &infinite, width);
      }
      DeviceArray from(*device_, stream(), x), values(*device_, stream(), got);
      kernels().block_largest(stream(), values.as<double>(), from.data(), dtype, count);
      values.fetch();
      for (int64_t b = 0; b < blocks; ++b) {
        double largest = 0;
        for (int64_t i = b * kBlockElements; i < std::min(count, (b + 1) * kBlockElements); ++i) {
          float element = 0;
          plain().cast(&element, DType::kFloat32, x.data() + i * element_bytes(dtype), dtype, 1);
          largest = std::max(largest, static_cast<double>(std::abs(element)));
        }
        ASSERT_EQ(got.as<double>()[b], largest) << name(dtype) << " " << count << ", block " << b;
      }
    });
  }
}

TEST(BlockNormLoops, AreEqualOnEveryInstructionSet) {
  constexpr int64_t kCount = 5 * kBlockElements + 13;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Elements x(dtype, kCount, 1), expected(DType::kFloat64, 6), got(DType::kFloat64, 6);
    fill_values(x, ValueKind::kOrdinary, 9);
    for (const Isa isa : available_isas()) {
      host_loops(Isa::kPlain).block_largest(expected.as<double>(), x.data(), dtype, kCount);
      host_loops(isa).block_largest(got.as<double>(), x.data(), dtype, kCount);
      EXPECT_TRUE(same_bytes(got, expected)) << name(isa);
      for (const int digit : {0, 1}) {
        const FixedSquares squares{x.data(), dtype, kCount, std::ldexp(1.0, -40), digit};
        host_loops(Isa::kPlain).block_fixed_squares(expected.as<double>(), squares);
        host_loops(isa).block_fixed_squares(got.as<double>(), squares);
        EXPECT_TRUE(same_bytes(got, expected)) << name(isa);
      }
    }
  }
}

/// Compares with 128-bit integers. The squares have exponents over a range of 2^90.
TEST_P(EveryDevice, SumsFixedSquaresExactly) {
  constexpr int64_t kCount = 3 * kBlockElements + 77;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Elements x(dtype, kCount, 1), got(DType::kFloat64, 4);
    __extension__ unsigned __int128 expected[4] = {};
    for (int64_t i = 0; i < kCount; ++i) {
      const float wanted = std::ldexp(1.0f + 0.0078125f * static_cast<float>(i % 127), -static_cast<int>(i % 45));
      float element = i % 3 == 0 ? -wanted : wanted;
      std::byte* at = x.data() + i * element_bytes(dtype);
      plain().cast(at, dtype, &element, DType::kFloat32, 1);
      plain().cast(&element, DType::kFloat32, at, dtype, 1);
      const double square = static_cast<double>(element) * static_cast<double>(element);
      expected[i / kBlockElements] += static_cast<uint64_t>(std::ldexp(square, 60));
    }
    __extension__ unsigned __int128 sums[4] = {};
    for (const int digit : {0, 1}) {
      DeviceArray from(*device_, stream(), x), values(*device_, stream(), got);
      kernels().block_fixed_squares(stream(), values.as<double>(), {from.data(), dtype, kCount, 0.25, digit});
      values.fetch();
      for (int b = 0; b < 4; ++b) sums[b] = (sums[b] << kFixedDigitBits) + static_cast<uint64_t>(got.as<double>()[b]);
    }
    for (int b = 0; b < 4; ++b) EXPECT_TRUE(sums[b] == expected[b]) << name(dtype) << ", block " << b;
  }
}

TEST_P(EveryDevice, FindsTheFirstNonfiniteElement) {
  for (const DType dtype : kFloatTypes) {
    for_shapes([&](int64_t count, int64_t misaligned) {
      Elements x(dtype, count, misaligned), found(DType::kFloat64, 1);
      fill_values(x, ValueKind::kOrdinary, 7);
      for (int64_t at = count; at >= 0; at = at == 0 ? -1 : at / 3) {
        const uint32_t nan = dtype == DType::kFloat16 ? 0x7c01u : dtype == DType::kBFloat16 ? 0xff80u : 0x7fffffffu;
        const auto width = static_cast<std::size_t>(element_bytes(dtype));
        if (at < count) std::memcpy(x.data() + static_cast<std::size_t>(at) * width, &nan, width);
        DeviceArray from(*device_, stream(), x), first(*device_, stream(), found);
        kernels().find_nonfinite(stream(), first.as<int64_t>(), from.data(), dtype, count);
        first.fetch();
        ASSERT_EQ(found.as<int64_t>()[0], at) << name(dtype) << " " << count;
      }
    });
  }
}

/// Blocks of 4 bytes are the scales of 8-bit moments, and the largest blocks are those of fp32.
TEST_P(EveryDevice, BlockDigestsMatchThePlainLoops) {
  for (const int64_t block_bytes : {4, 256, 512, 1024}) {
    for (const int64_t size_bytes : {0, 1, 2, 31, 64, 1022, 1024, 4096, 5000, 70003}) {
      for (const int64_t misaligned : {0, 1, 2, 4}) {
        const int64_t blocks = (size_bytes + block_bytes - 1) / block_bytes;
        Elements data(DType::kUInt8, size_bytes, misaligned), got(DType::kFloat64, blocks);
        for (int64_t i = 0; i < size_bytes; ++i) data.data()[i] = std::byte(hash_bits(static_cast<uint64_t>(i)) & 0xff);
        std::vector<uint64_t> expected(static_cast<std::size_t>(blocks));
        plain().block_digests(expected.data(), data.data(), block_bytes, size_bytes);
        DeviceArray from(*device_, stream(), data), digests(*device_, stream(), got);
        BlockDigests what{digests.as<uint64_t>(), from.data(), block_bytes, size_bytes};
        kernels().block_digests(stream(), what);
        digests.fetch();
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), got.as<uint64_t>()))
            << block_bytes << " " << size_bytes;
        what.chains = true;
        kernels().block_digests(stream(), what);
        digests.fetch();
        for (uint64_t& digest : expected) digest += digest * kDigestChainFactor;
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), got.as<uint64_t>()))
            << block_bytes << " " << size_bytes;
      }
    }
  }
}

TEST_P(EveryDevice, DigestSumsDependOnTheOrderOfBlocks) {
  for (const int64_t size_bytes : {int64_t{0}, int64_t{1}, int64_t{1024}, int64_t{1027}, int64_t{3000000}}) {
    Elements data(DType::kUInt8, size_bytes, 2), got(DType::kFloat64, 1);
    for (int64_t i = 0; i < size_bytes; ++i) data.data()[i] = std::byte(hash_bits(static_cast<uint64_t>(i)) & 0xff);
    std::vector<uint64_t> digests(static_cast<std::size_t>((size_bytes + 1023) / 1024));
    plain().block_digests(digests.data(), data.data(), 1024, size_bytes);
    uint64_t expected = 0;
    for (const uint64_t digest : digests) expected = expected * kDigestChainFactor + digest;
    DeviceArray from(*device_, stream(), data), sum(*device_, stream(), got);
    kernels().digest_sum(stream(), sum.as<uint64_t>(), from.data(), size_bytes);
    sum.fetch();
    EXPECT_EQ(*got.as<uint64_t>(), expected) << size_bytes;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, EveryDevice, kDevices, [](const auto& maker) { return maker.param.name; });
INSTANTIATE_TEST_SUITE_P(Kernels, EveryDeviceSum, kDevices, [](const auto& maker) { return maker.param.name; });

}  // namespace
}  // namespace aliquot
