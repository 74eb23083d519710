// Conformance tests of reduce-scatter in every element type, and of all-reduce.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/elementwise/host_loops.h"
#include "kernels/elementwise/kernels.h"
#include "sharding/comm/combine_in_tree.h"
#include "tests/sharding/conformance/conformance.h"

namespace aliquot::conformance {
namespace {

struct Format {
  DType from, to;
  float factor;
  bool in_place;
  int64_t offset_bytes = 0;  // offset of the first part in its buffer
};

/// Converts values to bytes of `dtype`.
std::vector<std::byte> encode(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * element_bytes(dtype));
  host_loops(Isa::kPlain)
      .cast(bytes.data(), dtype, values.data(), DType::kFloat32, static_cast<int64_t>(values.size()));
  return bytes;
}

std::vector<float> decode(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<float> values(bytes.size() / element_bytes(dtype));
  host_loops(Isa::kPlain)
      .cast(values.data(), DType::kFloat32, bytes.data(), dtype, static_cast<int64_t>(values.size()));
  return values;
}

std::vector<float> leaf(int rank, int part, int64_t count, DType dtype) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = value(rank, part, i);
  return decode(encode(values, dtype), dtype);
}

/// Returns part `part` of the sum over ranks, in fp32 and in the order of the aligned tree.
std::vector<float> expected_sum(int rank_count, int part, int64_t count, const Format& format) {
  std::vector<std::vector<float>> leaves;
  for (int r = 0; r < rank_count; ++r) leaves.push_back(leaf(r, part, count, format.from));
  std::vector<float> sum(count);
  for (int64_t i = 0; i < count; ++i) {
    sum[i] = combine_in_tree<float>(
        rank_count, [&](int r) { return leaves[r][i]; }, [](float a, float b) { return a + b; });
    if (format.factor != 1.0f) sum[i] *= format.factor;
  }
  return sum;
}

void expect_equal(int rank, const std::vector<float>& found, const std::vector<float>& expected, float tolerance) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool same = tolerance == 0 ? std::memcmp(&found[i], &expected[i], sizeof(float)) == 0
                                     : std::abs(found[i] - expected[i]) <= tolerance;
    if (same) continue;
    ADD_FAILURE() << "rank " << rank << ": element " << i << " is " << found[i] << ", not " << expected[i];
    return;
  }
}

void expect_squares(World& world, const Buffer& squares, const std::vector<float>& of) {
  const auto block_count = (static_cast<int64_t>(of.size()) + kBlockElements - 1) / kBlockElements;
  std::vector<double> expected(static_cast<std::size_t>(block_count));
  host_loops(Isa::kPlain).block_squares(expected.data(), of.data(), static_cast<int64_t>(of.size()));
  const auto found = read(world, squares.data(), block_count * 8);
  EXPECT_TRUE(block_count == 0 || std::memcmp(found.data(), expected.data(), found.size()) == 0)
      << "rank " << world.rank() << ": sums of squares differ";
}

void check_reduce_scatter(World& world, Communicator& ranks, int64_t count, const Format& format, bool in_tree_order) {
  const int64_t part_bytes = count * element_bytes(format.from);
  const int64_t whole_bytes = format.offset_bytes + part_bytes * ranks.rank_count();
  const auto from = ranks.allocate(whole_bytes, Category::kGradients, "from");
  std::byte* parts = from.local() + format.offset_bytes;
  for (int p = 0; p < ranks.rank_count(); ++p) {
    write(world, parts + p * part_bytes, encode(leaf(ranks.rank(), p, count, format.from), format.from));
  }
  const auto own = world.device().allocate(count * element_bytes(format.to), Category::kGradients, "shard");
  const int64_t block_count = (count + kBlockElements - 1) / kBlockElements;
  const auto squares = world.device().allocate(block_count * 8, Category::kCommunication, "squares");
  const auto staging = allocate_reduce_staging(world.device(), ranks.topology(), count);
  std::byte* to = format.in_place ? parts + ranks.rank() * part_bytes : own.data();
  const auto stream = world.device().make_stream(Lane::kReduce);
  ranks.reduce_scatter(*stream,
                       {.from = {&from, format.offset_bytes},
                        .from_dtype = format.from,
                        .to = to,
                        .to_dtype = format.to,
                        .part_count = count,
                        .factor = format.factor,
                        .block_squares = squares.as<double>(),
                        .in_tree_order = in_tree_order,
                        .staging = staging.data()},
                       {"test"});
  ranks.barrier(*stream, {"end of test"});
  stream->synchronize();

  const auto sum = expected_sum(ranks.rank_count(), ranks.rank(), count, format);
  const float tolerance = sums_are_exact() || in_tree_order ? 0.0f : 1e-3f * static_cast<float>(ranks.rank_count());
  const auto found = decode(read(world, to, count * element_bytes(format.to)), format.to);
  expect_equal(ranks.rank(), found, decode(encode(sum, format.to), format.to), tolerance);
  // The squares are computed from the fp32 sum. If the result is fp32, compute the expected squares from the result,
  // because its order of addition may differ from that of `sum`.
  expect_squares(world, squares, format.to == DType::kFloat32 ? found : sum);
}

/// Checks sums in tree order, and in the default order of the world if it is a different one.
void check_reduce_scatter(World& world, Communicator& ranks, int64_t count, const Format& format) {
  if (!sums_are_exact()) check_reduce_scatter(world, ranks, count, format, false);
  check_reduce_scatter(world, ranks, count, format, true);
}

constexpr DType kF32 = DType::kFloat32, kB16 = DType::kBFloat16, kF16 = DType::kFloat16;

TEST_P(EveryWorld, ReduceScatterSumsFloats) {
  run([&](World& world) { check_reduce_scatter(world, world.communicator(), count(), {kF32, kF32, 1.0f, false}); });
}
TEST_P(EveryWorld, ReduceScatterIntoTheRanksOwnPart) {
  run([&](World& world) { check_reduce_scatter(world, world.communicator(), count(), {kF32, kF32, 1.0f, true}); });
}
TEST_P(EveryWorld, ReduceScatterOfTheMean) {
  run([&](World& world) {
    check_reduce_scatter(world, world.communicator(), count(),
                         {kF32, kF32, 1.0f / static_cast<float>(world.rank_count()), false});
  });
}
TEST_P(EveryWorld, ReduceScatterAddsBfloat16InFloat) {
  run([&](World& world) { check_reduce_scatter(world, world.communicator(), count(), {kB16, kF32, 1.0f, false}); });
}
TEST_P(EveryWorld, ReduceScatterRoundsOnceToBfloat16) {
  run([&](World& world) { check_reduce_scatter(world, world.communicator(), count(), {kB16, kB16, 0.5f, true}); });
}
TEST_P(EveryWorld, ReduceScatterAddsFloat16InFloat) {
  run([&](World& world) { check_reduce_scatter(world, world.communicator(), count(), {kF16, kF32, 1.0f, false}); });
}

TEST_P(EveryWorld, ReduceScatterAtAnOffset) {
  run([&](World& world) { check_reduce_scatter(world, world.communicator(), count(), {kF32, kF32, 0.5f, true, 768}); });
}
TEST_P(EveryWorld, ReduceScatterWithinGroups) {
  run([&](World& world) {
    for_each_test_group(world, [&](Communicator& group) {
      check_reduce_scatter(world, group, group_count(), {kF32, kF32, 0.5f, true, 768});
      check_reduce_scatter(world, group, group_count(), {kB16, kF32, 1.0f, false, 256});
    });
  });
}

/// Each rank adds the parts of other ranks, and then its own part in place. Every rank adds alone, or the ranks of a
/// node add first.
void check_parts_of_other_ranks(World& world, Communicator& ranks, int64_t count, const Format& format, bool alone) {
  const int64_t part_bytes = count * element_bytes(format.from);
  const auto from = ranks.allocate(part_bytes * ranks.rank_count(), Category::kGradients, "from");
  for (int p = 0; p < ranks.rank_count(); ++p)
    write(world, from.local() + p * part_bytes, encode(leaf(ranks.rank(), p, count, format.from), format.from));
  const auto other = world.device().allocate(count * element_bytes(format.to), Category::kGradients, "other");
  const auto staging = allocate_reduce_staging(world.device(), ranks.topology(), count, alone);
  const auto stream = world.device().make_stream(Lane::kReduce);
  for (int shift = std::min(2, ranks.rank_count() - 1); shift >= 0; --shift) {
    std::byte* to = shift == 0 ? from.local() + ranks.rank() * part_bytes : other.data();
    ranks.reduce_scatter(*stream,
                         {.from = {&from, 0},
                          .from_dtype = format.from,
                          .to = to,
                          .to_dtype = format.to,
                          .part_count = count,
                          .in_tree_order = true,
                          .staging = staging.data(),
                          .alone = alone,
                          .shift = shift},
                         {"test"});
    stream->synchronize();
    const int part = (ranks.rank() + shift) % ranks.rank_count();
    expect_equal(ranks.rank(), decode(read(world, to, count * element_bytes(format.to)), format.to),
                 decode(encode(expected_sum(ranks.rank_count(), part, count, format), format.to), format.to), 0);
  }
  ranks.barrier(*stream, {"end of test"});
  stream->synchronize();
}

TEST_P(EveryWorldOnce, ReduceScatterOfThePartsOfOtherRanks) {
  run([&](World& world) {
    for (const bool alone : {false, true}) {
      check_parts_of_other_ranks(world, world.communicator(), 5000, {kF32, kF32, 1.0f, true}, alone);
      check_parts_of_other_ranks(world, world.communicator(), 700, {kB16, kB16, 1.0f, true}, alone);
    }
    for_each_test_group(world, [&](Communicator& group) {
      check_parts_of_other_ranks(world, group, 512, {kB16, kB16, 1.0f, true}, true);
    });
  });
}

TEST_P(EveryWorldOnce, AllReduceGivesSumMaxAndMin) {
  run([&](World& world) {
    auto& ranks = world.communicator();
    const auto stream = world.device().make_stream(Lane::kCompute);
    for (const int64_t count : {int64_t{0}, int64_t{1}, Communicator::kSmallCount}) {
      std::vector<double> sum(count), largest(count), smallest(count);
      for (int64_t i = 0; i < count; ++i) sum[i] = largest[i] = smallest[i] = value(ranks.rank(), 0, i);
      ranks.all_reduce(*stream, sum, Reduction::kSum, {"sum"});
      ranks.all_reduce(*stream, largest, Reduction::kMax, {"max"});
      ranks.all_reduce(*stream, smallest, Reduction::kMin, {"min"});
      stream->synchronize();
      for (int64_t i = 0; i < count; ++i) {
        const auto leaf = [&](int r) { return static_cast<double>(value(r, 0, i)); };
        const int n = ranks.rank_count();
        ASSERT_EQ(sum[i], combine_in_tree<double>(n, leaf, [](double a, double b) { return a + b; }));
        ASSERT_EQ(largest[i], combine_in_tree<double>(n, leaf, [](double a, double b) { return std::max(a, b); }));
        ASSERT_EQ(smallest[i], combine_in_tree<double>(n, leaf, [](double a, double b) { return std::min(a, b); }));
      }
    }
  });
}

TEST_P(EveryWorldOnce, AllReduceOfANanIsNanOnAllRanks) {
  run([&](World& world) {
    auto& ranks = world.communicator();
    const auto stream = world.device().make_stream(Lane::kCompute);
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMax, Reduction::kMin}) {
      for (int bad = 0; bad < ranks.rank_count(); ++bad) {
        double number = ranks.rank() == bad ? std::numeric_limits<double>::quiet_NaN() : ranks.rank();
        ranks.all_reduce(*stream, {&number, 1}, reduction, {"test"});
        stream->synchronize();
        EXPECT_TRUE(std::isnan(number)) << "rank " << ranks.rank() << ", bad rank " << bad;
      }
    }
  });
}

}  // namespace
}  // namespace aliquot::conformance
