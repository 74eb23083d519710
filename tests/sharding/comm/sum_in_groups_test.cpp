// Checks that a sum over groups, followed by a sum of the results, is bitwise identical to a sum in one step.
#include "sharding/comm/sum_in_groups.h"

#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "kernels/device/device.h"

namespace aliquot {
namespace {

constexpr int64_t kCount = 700;

struct Summed {
  std::vector<uint16_t> values;
  std::vector<double> squares;
  friend bool operator==(const Summed&, const Summed&) = default;
};

Summed sum(Device& device, const std::vector<std::vector<uint16_t>>& leaves, std::size_t group_size) {
  Summed result{std::vector<uint16_t>(kCount), std::vector<double>((kCount + kBlockElements - 1) / kBlockElements)};
  std::vector<const std::byte*> bases;
  for (const auto& leaf : leaves) bases.push_back(reinterpret_cast<const std::byte*>(leaf.data()));
  const std::size_t group_count = (leaves.size() + group_size - 1) / group_size;
  std::vector<std::vector<float>> partial(group_count, std::vector<float>(kCount));
  std::vector<std::byte*> partial_pointers;
  for (auto& one : partial) partial_pointers.push_back(reinterpret_cast<std::byte*>(one.data()));
  const auto stream = device.make_stream(Lane::kReduce);
  sum_in_groups(device.kernels(), *stream,
                {.bases = bases,
                 .from_dtype = DType::kBFloat16,
                 .to = result.values.data(),
                 .to_dtype = DType::kBFloat16,
                 .count = kCount,
                 .factor = 1.0f / 3.0f,
                 .block_squares = result.squares.data()},
                group_size, partial_pointers);
  stream->synchronize();
  return result;
}

TEST(SumInGroups, IsBitwiseIdenticalToASingleSum) {
  const auto device = make_host_device(1);
  std::mt19937 random(7);
  for (const std::size_t rank_count : {1, 3, 4, 5, 8, 13, 16, 31}) {
    std::vector<std::vector<uint16_t>> leaves(rank_count, std::vector<uint16_t>(kCount));
    for (auto& leaf : leaves) {
      // Random signs, and magnitudes from 2^-7 to 2, so that sums are inexact.
      for (auto& bits : leaf) bits = static_cast<uint16_t>(0x3C00 + random() % 0x400 + (random() % 2 << 15));
    }
    const Summed expected = sum(*device, leaves, 64);
    for (const std::size_t group_size : {std::size_t{2}, std::size_t{4}, std::size_t{8}})
      EXPECT_EQ(sum(*device, leaves, group_size), expected) << rank_count << " in groups of " << group_size;
  }
}

}  // namespace
}  // namespace aliquot
