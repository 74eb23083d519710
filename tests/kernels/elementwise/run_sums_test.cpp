// Compares Kernels::sum_runs() of every device with the definition of its tree.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

#include "tests/kernels/elementwise/every_device.h"

namespace aliquot {
namespace {

/// The definition of Kernels::sum_runs(), level by level. A child that does not exist is left out.
double sum_by_levels(std::vector<double> values) {
  while (values.size() > 1) {
    std::vector<double> above;
    for (std::size_t i = 0; i < values.size(); i += 2)
      above.push_back(i + 1 < values.size() ? values[i] + values[i + 1] : values[i]);
    values = std::move(above);
  }
  return values.front();
}

class RunSumsTest : public EveryDevice {
 protected:
  /// Computes the sums of runs of these lengths with one call, and compares them. `change` may change the leaves.
  void check(const std::vector<int64_t>& counts, int64_t gap, const std::function<void(std::vector<double>&)>& change) {
    std::vector<LeafRun> runs;
    std::vector<double> leaves;
    std::mt19937_64 random(counts.size());
    std::lognormal_distribution<double> value(0.0, 4.0);
    const auto count = std::ssize(counts);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t run = counts[static_cast<std::size_t>(i)];
      runs.push_back({count + std::ssize(leaves), run, count - 1 - i});  // sums in reverse order, before the leaves
      for (int64_t leaf = 0; leaf < run + gap; ++leaf) leaves.push_back(leaf < run ? value(random) : -1e30);
    }
    change(leaves);
    Elements values(DType::kFloat64, count + std::ssize(leaves));
    std::ranges::copy(leaves, values.as<double>() + count);
    Elements table(DType::kFloat64, count * 3);
    static_assert(sizeof(LeafRun) == 3 * sizeof(double));
    std::memcpy(table.data(), runs.data(), runs.size() * sizeof(LeafRun));
    DeviceArray on_device(*device_, stream(), values), list(*device_, stream(), table);
    kernels().sum_runs(stream(), {on_device.as<double>(), list.as<LeafRun>(), count});
    on_device.fetch();
    for (const LeafRun& run : runs) {
      const auto first = leaves.begin() + (run.first - count);
      const double expected = sum_by_levels({first, first + run.count}), got = values.as<double>()[run.sum];
      ASSERT_TRUE(std::bit_cast<uint64_t>(got) == std::bit_cast<uint64_t>(expected) ||
                  (std::isnan(got) && std::isnan(expected)))
          << run.count << " leaves: " << got << ", expected " << expected;
    }
    EXPECT_EQ(std::memcmp(values.as<double>() + count, leaves.data(), leaves.size() * sizeof(double)), 0);
  }
  void check(const std::vector<int64_t>& counts, int64_t gap) {
    check(counts, gap, [](std::vector<double>&) {});
  }
};

TEST_P(RunSumsTest, SumsRunsOfEveryLengthInTheTree) {
  std::vector<int64_t> counts;
  for (int64_t count = 1; count <= 40; ++count) counts.push_back(count);
  for (const int64_t around : {64, 256, 512, 1024, 2048, 4096, 8192}) {
    for (int64_t count = around - 1; count <= around + 1; ++count) counts.push_back(count);
  }
  // Several chunks of 2048 leaves, of which the last one may be incomplete.
  for (const int64_t count : {3 * 2048, 5 * 2048 + 7, 6 * 2048, 7 * 2048 - 1, 13 * 2048 + 300}) counts.push_back(count);
  for (const int64_t gap : {0, 1, 3}) check(counts, gap);
}

TEST_P(RunSumsTest, SumsManyShortRunsAndNone) {
  check({}, 0);
  check({1}, 0);
  check(std::vector<int64_t>(3000, 2), 1);
}

TEST_P(RunSumsTest, SumsLongRuns) {
  if (GetParam().name == "cuda") check({(int64_t{1} << 21) + 12345, int64_t{1} << 20}, 1);
  check({100'000, 70'001}, 1);
}

/// Leaves that do not exist must change no sum, not even the sign of zero.
TEST_P(RunSumsTest, KeepsZerosInfinitiesAndNans) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const double least = std::numeric_limits<double>::denorm_min(), most = std::numeric_limits<double>::max();
  for (const double special : {0.0, -0.0, infinity, nan, least, most}) {
    check({1, 2, 3, 31, 33, 300, 2049, 5000}, 1, [&](std::vector<double>& leaves) {
      for (double& leaf : leaves) leaf = special;
    });
    for (const std::size_t at : {0, 40, 2047, 2048, 4999}) {
      check({5000}, 0, [&](std::vector<double>& leaves) { leaves[at] = special; });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, RunSumsTest, kDevices, [](const auto& maker) { return maker.param.name; });

}  // namespace
}  // namespace aliquot
