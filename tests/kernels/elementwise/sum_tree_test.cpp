#include <algorithm>
#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <stdexcept>
#include <vector>

#include "kernels/elementwise/host_loops.h"
#include "tests/kernels/elementwise/loops_data.h"

namespace aliquot {
namespace {

// Returns the sum of leaves [begin, begin + width) by the definition of the aligned tree: the sum of its left half plus
// the sum of its right half. A right half without leaves is left out.
float tree(const std::vector<float>& leaves, std::size_t begin, std::size_t width) {
  if (width == 1) return leaves[begin];
  const float left = tree(leaves, begin, width / 2);
  if (begin + width / 2 >= leaves.size()) return left;
  return left + tree(leaves, begin + width / 2, width / 2);
}

float tree(const std::vector<float>& leaves) { return tree(leaves, 0, std::bit_ceil(leaves.size())); }

double naive_block_squares(const float* x, int64_t count) {
  std::vector<float> v(kBlockElements, 0.0f);
  for (int64_t i = 0; i < count; ++i) v[static_cast<std::size_t>(i)] = x[i] * x[i];
  for (std::size_t half = 128; half >= 1; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) v[i] = v[i] + v[i + half];
  }
  return static_cast<double>(v[0]);
}

// The sources of one sum, and their base addresses for TreeSum. If `misaligned` is not 0, each source has a different
// misalignment.
struct Sources {
  Sources(DType dtype, int64_t source_count, int64_t count, ValueKind values, int64_t misaligned) {
    for (int64_t r = 0; r < source_count; ++r) {
      arrays.emplace_back(dtype, count, misaligned == 0 ? 0 : (misaligned + r) % 16);
      fill_values(arrays.back(), values, static_cast<uint64_t>(100 + r));
    }
    for (Elements& array : arrays) bases.push_back(array.data() - kOffsetBytes);
  }

  float sum(int64_t i) const {
    leaves.clear();
    for (const Elements& array : arrays) leaves.push_back(array.value(i));
    return tree(leaves);
  }

  static constexpr int64_t kOffsetBytes = 64;
  std::vector<Elements> arrays;
  std::vector<const std::byte*> bases;
  mutable std::vector<float> leaves;  // scratch of sum(), a member to avoid millions of allocations
};

class SumTree : public testing::TestWithParam<Isa> {
 protected:
  const HostLoops& loops() const { return host_loops(GetParam()); }

  void check(const Sources& sources, Elements& to, float factor, bool squares) {
    const int64_t count = to.count();
    const int64_t blocks = (count + kBlockElements - 1) / kBlockElements;
    Elements finished(DType::kFloat32, count), expected(to.dtype(), count);
    for (int64_t i = 0; i < count; ++i) finished.as<float>()[i] = sources.sum(i) * factor;
    host_loops(Isa::kPlain).cast(expected.data(), to.dtype(), finished.data(), DType::kFloat32, count);

    std::vector<double> sums(static_cast<std::size_t>(blocks), -1.0);
    TreeSum sum{.bases = sources.bases,
                .offset_bytes = Sources::kOffsetBytes,
                .from_dtype = sources.arrays[0].dtype(),
                .to = to.data(),
                .to_dtype = to.dtype(),
                .count = count,
                .factor = factor,
                .block_squares = squares ? sums.data() : nullptr};
    loops().sum_tree(sum, 0, count);
    expect_same_values(to, expected);
    EXPECT_TRUE(to.guards_intact());
    for (int64_t b = 0; squares && b < blocks; ++b) {
      const int64_t begin = b * kBlockElements;
      const double naive = naive_block_squares(finished.as<float>() + begin, std::min(kBlockElements, count - begin));
      const double got = sums[static_cast<std::size_t>(b)];
      ASSERT_TRUE(got == naive || (got != got && naive != naive)) << "block " << b << ": " << got << ", " << naive;
    }
  }
};

TEST_P(SumTree, AddsInTheAlignedTreeForEveryNumberOfSources) {
  for (int64_t k = 1; k <= 17; ++k) {
    for (const int64_t count : {0, 1, 15, 16, 17, 255, 256, 257, 1023, 1025, 3000}) {
      const Sources sources(DType::kFloat32, k, count, ValueKind::kOrdinary, k % 3);
      Elements to(DType::kFloat32, count, k % 2);
      SCOPED_TRACE(testing::Message() << k << " sources of " << count);
      check(sources, to, k % 2 == 0 ? 1.0f : 1.0f / static_cast<float>(k), k % 4 < 2);
    }
  }
}

TEST_P(SumTree, SumsManySources) {
  for (const int64_t k : {31, 64, 100, 1000, 1024, 4096}) {
    const Sources sources(DType::kFloat32, k, 300, ValueKind::kOrdinary, 0);
    Elements to(DType::kFloat32, 300);
    SCOPED_TRACE(k);
    check(sources, to, 1.0f, true);
  }
}

TEST_P(SumTree, SumsALargePrimeCount) {
  const Sources sources(DType::kFloat32, 3, 1'000'003, ValueKind::kOrdinary, 1);
  Elements to(DType::kFloat32, 1'000'003, 1);
  check(sources, to, 0.5f, true);
}

// Results of 4 MiB or more that are not a source are written with non-temporal stores of full cache lines.
TEST_P(SumTree, SumsAboveTheNonTemporalThreshold) {
  const Sources sources(DType::kBFloat16, 3, 2'500'000, ValueKind::kOrdinary, 0);
  for (const int64_t misaligned : {0, 1, 15}) {
    SCOPED_TRACE(misaligned);
    Elements narrow(DType::kFloat16, 2'500'000, misaligned);
    check(sources, narrow, 0.5f, true);
  }
  const Sources wide_sources(DType::kBFloat16, 3, 1'200'000, ValueKind::kOrdinary, 0);
  for (const int64_t misaligned : {0, 1, 4, 15}) {
    SCOPED_TRACE(misaligned);
    Elements wide(DType::kFloat32, 1'200'000, misaligned);
    check(wide_sources, wide, 0.5f, true);
  }
}

TEST_P(SumTree, MayOverwriteALargeSource) {
  constexpr int64_t kCount = 1'100'000;
  const Sources sources(DType::kFloat32, 2, kCount, ValueKind::kOrdinary, 0);
  Sources aliased(DType::kFloat32, 2, kCount, ValueKind::kOrdinary, 0);
  const TreeSum sum{
      .bases = aliased.bases, .offset_bytes = Sources::kOffsetBytes, .to = aliased.arrays[1].data(), .count = kCount};
  loops().sum_tree(sum, 0, kCount);
  for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(aliased.arrays[1].value(i), sources.sum(i));
}

TEST_P(SumTree, SumsEveryPairOfTypes) {
  for (const DType from : kFloatTypes) {
    for (const DType to_dtype : kFloatTypes) {
      for (const int64_t k : {1, 2, 3, 4, 5, 8, 11}) {
        SCOPED_TRACE(testing::Message() << k << " " << name(from) << " to " << name(to_dtype));
        const Sources sources(from, k, 1999, ValueKind::kOrdinary, 3);
        Elements to(to_dtype, 1999, 1);
        check(sources, to, 1.0f / static_cast<float>(k), true);
      }
    }
  }
}

TEST_P(SumTree, SumsInfinitiesNanAndSubnormals) {
  for (const DType from : kFloatTypes) {
    for (const int64_t k : {1, 2, 3, 8, 9}) {
      SCOPED_TRACE(testing::Message() << k << " " << name(from));
      const Sources sources(from, k, 2000, ValueKind::kSpecial, 0);
      Elements to(DType::kFloat32, 2000), narrow(DType::kBFloat16, 2000);
      check(sources, to, 1.0f, true);
      check(sources, narrow, 0.25f, true);
    }
  }
}

// The sum may overwrite one of its sources, as an in-place reduce does.
TEST_P(SumTree, MayOverwriteASource) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t k : {1, 2, 3, 8, 16, 20}) {
      for (const int64_t own : {int64_t{0}, k / 2, k - 1}) {
        SCOPED_TRACE(testing::Message() << k << " sources onto " << own << " " << name(dtype));
        const Sources sources(dtype, k, 5000, ValueKind::kOrdinary, 0);
        Sources aliased(dtype, k, 5000, ValueKind::kOrdinary, 0);
        Elements expected(dtype, 5000);
        TreeSum sum{.bases = sources.bases,
                    .offset_bytes = Sources::kOffsetBytes,
                    .from_dtype = dtype,
                    .to = expected.data(),
                    .to_dtype = dtype,
                    .count = 5000,
                    .factor = 0.3f};
        host_loops(Isa::kPlain).sum_tree(sum, 0, 5000);
        sum.bases = aliased.bases;
        Elements& target = aliased.arrays[static_cast<std::size_t>(own)];
        sum.to = target.data();
        loops().sum_tree(sum, 0, 5000);
        expect_same_values(target, expected);
        EXPECT_TRUE(target.guards_intact());
      }
    }
  }
}

TEST_P(SumTree, RangesOfBlocksGiveTheBitsOfOneCall) {
  const Sources sources(DType::kBFloat16, 6, 10'000, ValueKind::kOrdinary, 0);
  Elements full(DType::kFloat32, 10'000), parts(DType::kFloat32, 10'000);
  std::vector<double> full_sums(40), part_sums(40);
  TreeSum sum{.bases = sources.bases,
              .offset_bytes = Sources::kOffsetBytes,
              .from_dtype = DType::kBFloat16,
              .to = full.data(),
              .count = 10'000,
              .block_squares = full_sums.data()};
  loops().sum_tree(sum, 0, 10'000);
  sum.to = parts.data();
  sum.block_squares = part_sums.data();
  for (int64_t begin = 0; begin < 10'000; begin += 768)
    loops().sum_tree(sum, begin, std::min<int64_t>(10'000, begin + 768));
  EXPECT_TRUE(same_bytes(parts, full));
  EXPECT_EQ(part_sums, full_sums);
}

TEST_P(SumTree, BlockSquaresMatchTheNaiveSum) {
  for (const int64_t count : kCounts) {
    Elements x(DType::kFloat32, count, 1);
    fill_values(x, ValueKind::kOrdinary, 6);
    const int64_t blocks = (count + kBlockElements - 1) / kBlockElements;
    std::vector<double> sums(static_cast<std::size_t>(blocks) + 1, -1.0);
    loops().block_squares(sums.data(), x.as<float>(), count);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t begin = b * kBlockElements;
      ASSERT_EQ(sums[static_cast<std::size_t>(b)],
                naive_block_squares(x.as<float>() + begin, std::min(kBlockElements, count - begin)));
    }
    EXPECT_EQ(sums.back(), -1.0);
  }
}

TEST_P(SumTree, BlockSquaresOfANonfiniteElementAreNotFinite) {
  for (int64_t at = 0; at < 512; at += 5) {
    for (const uint32_t bits : {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u}) {
      Elements x(DType::kFloat32, 512);
      fill_values(x, ValueKind::kOrdinary, 7);
      x.as<float>()[at] = float_from_bits(bits);
      double sums[2];
      loops().block_squares(sums, x.as<float>(), 512);
      EXPECT_FALSE(std::isfinite(sums[at / 256]));
      EXPECT_TRUE(std::isfinite(sums[1 - at / 256]));
    }
  }
}

TEST_P(SumTree, RejectsAnInvalidNumberOrTypeOfSources) {
  float to[4];
  const std::vector<const std::byte*> many(4097, reinterpret_cast<const std::byte*>(to));
  const TreeSum none{.bases = {}, .to = to, .count = 4};
  const TreeSum too_many{.bases = many, .to = to, .count = 4};
  TreeSum integers{.bases = many, .from_dtype = DType::kInt16, .to = to, .count = 4};
  integers.bases = integers.bases.first(2);
  for (const TreeSum& sum : {none, too_many, integers}) EXPECT_THROW(loops().sum_tree(sum, 0, 4), std::logic_error);
}

INSTANTIATE_TEST_SUITE_P(HostLoops, SumTree, testing::ValuesIn(available_isas().begin(), available_isas().end()),
                         [](const auto& isa) { return std::string(name(isa.param)); });

}  // namespace
}  // namespace aliquot
