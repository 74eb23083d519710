// Checks that divided runs give the sums of LocalNormSums.

#include "optim/norm_runs.h"

#include <algorithm>
#include <bit>
#include <gtest/gtest.h>
#include <random>
#include <set>

#include "kernels/device/device.h"
#include "optim/norm_tree.h"

namespace aliquot {
namespace {

/// A tensor of which one rank owns consecutive blocks.
struct Owned {
  int64_t block_count, first_block, end_block;
};

/// The values of a rank: its block sums, then the sums of its nodes, then partial sums.
class Rank {
 public:
  explicit Rank(const std::vector<Owned>& tensors) {
    std::vector<NormTensor> all;
    std::vector<NormSpan> spans;
    for (const Owned& tensor : tensors) {
      const auto index = static_cast<int32_t>(all.size());
      all.push_back({std::to_string(index), tensor.block_count});
      spans.push_back({index, tensor.first_block, tensor.end_block - tensor.first_block, block_count_});
      block_count_ += spans.back().block_count + 1;  // a block of padding
    }
    const LocalNormSums sums(NormTree(all), spans);
    std::mt19937_64 random(7);
    std::lognormal_distribution<double> value(0.0, 6.0);
    for (int64_t b = 0; b < block_count_; ++b) values_.push_back(value(random));
    expected_.resize(sums.nodes().size());
    sums.sums(values_.data(), expected_);
    for (const LocalNormSums::Run& run : sums.runs())
      runs_.push_back({run.place, run.block_count, block_count_ + std::ssize(runs_)});
    split_ = split_runs(runs_, block_count_ + std::ssize(runs_));
    values_.resize(values_.size() + runs_.size() + static_cast<std::size_t>(split_.partial_count), -1.0);
  }

  const SplitRuns& split() const { return split_; }

  /// Expects the same bits from both calls of sum_runs().
  void expect_sums() {
    const auto device = make_host_device(2);
    const auto stream = device->make_stream(Lane::kReduce);
    const auto second = std::ssize(split_.runs) - split_.first_call_count;
    const Kernels& kernels = device->kernels();
    kernels.sum_runs(*stream, {values_.data(), split_.runs.data(), split_.first_call_count});
    kernels.sum_runs(*stream, {values_.data(), split_.runs.data() + split_.first_call_count, second});
    stream->synchronize();
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      const double got = values_[static_cast<std::size_t>(block_count_) + i];
      ASSERT_EQ(std::bit_cast<uint64_t>(got), std::bit_cast<uint64_t>(expected_[i])) << runs_[i].count << " blocks";
    }
  }
  /// Expects short runs in the first call, and that no call writes a value that it reads or writes elsewhere.
  void expect_independent_runs() const {
    const std::span all(split_.runs);
    const auto first_count = static_cast<std::size_t>(split_.first_call_count);
    for (const LeafRun& run : all.first(first_count)) EXPECT_LE(run.count, kMaxRunLeaves);
    for (const auto& call : {all.first(first_count), all.subspan(first_count)}) {
      std::set<int64_t> sums;
      for (const LeafRun& run : call) EXPECT_TRUE(sums.insert(run.sum).second);
      for (const LeafRun& run : call) {
        EXPECT_GE(run.count, 1);
        const auto inside = sums.lower_bound(run.first);
        EXPECT_TRUE(inside == sums.end() || *inside >= run.first + run.count);
      }
    }
  }

 private:
  int64_t block_count_ = 0;
  std::vector<double> values_, expected_;
  std::vector<LeafRun> runs_;
  SplitRuns split_;
};

void expect_sums(const std::vector<Owned>& tensors) {
  Rank rank(tensors);
  rank.expect_sums();
  rank.expect_independent_runs();
}

TEST(NormRuns, GiveTheSumsOfTheHost) {
  std::vector<Owned> tensors;
  for (int64_t blocks = 1; blocks <= 40; ++blocks) tensors.push_back({blocks, 0, blocks});
  expect_sums(tensors);
  tensors.clear();
  for (const int64_t multiple : {1, 2, 3, 4, 7, 8, 31, 32, 33}) {
    const int64_t blocks = multiple * kMaxRunLeaves;
    for (int64_t more = -1; more <= 1; ++more) tensors.push_back({blocks + more, 0, blocks + more});
  }
  expect_sums(tensors);
}

TEST(NormRuns, GiveTheSumsOfTheHostForPartsOfTensors) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 30; ++trial) {
    std::vector<Owned> tensors;
    for (int t = 0; t < 4; ++t) {
      const int64_t blocks = std::uniform_int_distribution<int64_t>(1, 40'000)(random);
      const int64_t first = std::uniform_int_distribution<int64_t>(0, blocks)(random);
      tensors.push_back({blocks, first, std::uniform_int_distribution<int64_t>(first, blocks)(random)});
    }
    expect_sums(tensors);
  }
}

/// The tensor is so large that the second call has more than kMaxRunLeaves partial sums.
TEST(NormRuns, GiveTheSumsOfTheHostForAHugeTensor) {
  const int64_t blocks = kMaxRunLeaves * kMaxRunLeaves + 5 * kMaxRunLeaves + 17;
  expect_sums({{blocks, 0, blocks}});
}

TEST(NormRuns, AreDividedOnlyAboveTheBound) {
  const Rank rank({{kMaxRunLeaves, 0, kMaxRunLeaves}, {2 * kMaxRunLeaves + 1, 0, 2 * kMaxRunLeaves + 1}});
  EXPECT_EQ(rank.split().partial_count, 3);
  EXPECT_EQ(rank.split().first_call_count, 4);
  ASSERT_EQ(rank.split().runs.size(), 5u);
  EXPECT_EQ(rank.split().runs.back().count, 3);
  EXPECT_TRUE(split_runs({}, 0).runs.empty());
}

}  // namespace
}  // namespace aliquot
