// Checks that the fused update gives the same bits for every instruction set, form of the master and partition into
// shards.

#include "optim/update/update.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>

#include "optim/update/stochastic.h"
#include "tests/optim/shard.h"

namespace aliquot {
namespace {

const std::vector<std::vector<int64_t>> kTensorSizes = {
    {}, {0}, {1}, {255}, {256}, {257}, {100003}, {1, 256, 255, 0, 257, 3000, 17}, {40000, 5, 768, 60000}};

/// Element types of gradients and moments.
const std::vector<std::pair<DType, DType>> kDTypes = {{DType::kFloat32, DType::kFloat32},
                                                      {DType::kBFloat16, DType::kFloat32},
                                                      {DType::kFloat32, DType::kBFloat16},
                                                      {DType::kBFloat16, DType::kBFloat16}};

Isa highest_isa() { return available_isas().back(); }

void expect_same_bits_on_every_isa(const Optimizer& optimizer, MasterForm form, DType gradient, DType moments,
                                   const std::vector<int64_t>& counts) {
  const auto segments = segments_of(counts);
  Shard plain(segments, count_of(segments), form, gradient, moments);
  for (int step = 1; step <= 3; ++step) plain.step(Isa::kPlain, optimizer, step);
  for (const Isa isa : available_isas().subspan(1)) {
    Shard vector(segments, count_of(segments), form, gradient, moments);
    for (int step = 1; step <= 3; ++step) vector.step(isa, optimizer, step);
    ASSERT_TRUE(same_bits(plain, vector))
        << name(optimizer) << " " << name(isa) << " form " << static_cast<int>(form) << " gradients " << name(gradient)
        << " moments " << name(moments) << " of " << count_of(segments);
  }
}

TEST(Update, EveryInstructionSetGivesTheSameBits) {
  for (const Optimizer& optimizer : every_optimizer()) {
    for (const MasterForm form : kMasterForms) {
      for (const auto& [gradient, moments] : kDTypes) {
        for (const auto& counts : kTensorSizes)
          expect_same_bits_on_every_isa(optimizer, form, gradient, moments, counts);
      }
    }
  }
}

TEST(Update, Fp32AndBf16GradientsGiveTheSameBits) {
  const auto segments = segments_of({3000, 17});
  Shard a(segments, count_of(segments), MasterForm::kWhole, DType::kFloat32);
  Shard b(segments, count_of(segments), MasterForm::kWhole, DType::kBFloat16);
  for (int step = 1; step <= 3; ++step) {
    a.step(highest_isa(), AdamW{}, step);
    b.step(highest_isa(), AdamW{}, step);
  }
  EXPECT_TRUE(same_bits(a, b));
}

TEST(Update, SplitMasterGivesTheBitsOfAFullMaster) {
  const auto segments = segments_of({5000, 300, 1});
  for (const Optimizer& optimizer : every_optimizer()) {
    Shard whole(segments, count_of(segments), MasterForm::kBf16Copy, DType::kBFloat16);
    Shard split(segments, count_of(segments), MasterForm::kSplit, DType::kBFloat16);
    for (int step = 1; step <= 50; ++step) {
      whole.step(highest_isa(), optimizer, step);
      split.step(highest_isa(), optimizer, step);
    }
    for (const Segment& segment : segments) {
      for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
        const auto at = static_cast<size_t>(i);
        ASSERT_EQ(float_bits(whole.whole[at]), float_bits(merge_master(split.high[at], split.low[at])))
            << name(optimizer);
        ASSERT_EQ(whole.copy[at], split.high[at]) << name(optimizer);
      }
    }
    for (int k = 0; k < kMaxStates; ++k) EXPECT_TRUE(same_bits(whole.states[k], split.states[k]));
  }
}

TEST(Update, ANonfiniteFactorSkipsTheStep) {
  const auto segments = segments_of({3000, 17});
  for (const float factor : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const MasterForm form : kMasterForms) {
      Shard before(segments, count_of(segments), form, DType::kFloat32);
      Shard after(segments, count_of(segments), form, DType::kFloat32);
      before.step(highest_isa(), AdamW{}, 1);
      after.step(highest_isa(), AdamW{}, 1);
      after.step(highest_isa(), AdamW{}, 2, factor);
      EXPECT_TRUE(same_bits(before, after));
    }
  }
}

TEST(Update, WritesNothingBetweenSegments) {
  const auto segments = segments_of({1, 257, 100});
  for (const MasterForm form : kMasterForms) {
    Shard shard(segments, count_of(segments) + 512, form, DType::kFloat32);
    Shard before(segments, count_of(segments) + 512, form, DType::kFloat32);
    shard.step(highest_isa(), AdamW{}, 1);
    size_t next = 0, changed = 0;
    for (const Segment& segment : segments) {
      for (; next < static_cast<size_t>(segment.offset); ++next) ASSERT_EQ(shard.weight(next), before.weight(next));
      for (; next < static_cast<size_t>(segment.offset + segment.count); ++next) {
        changed += shard.weight(next) != before.weight(next);
      }
    }
    EXPECT_GT(changed, 300u);
    for (; next < shard.whole.size(); ++next) {
      ASSERT_EQ(shard.weight(next), before.weight(next));
      ASSERT_EQ(shard.copy[next], 0xABCD);
      ASSERT_EQ(shard.states[0][next], 0.0f);
    }
  }
}

/// The segments and arguments of a rank that owns elements [begin, end) of `whole`.
struct Part {
  std::vector<Segment> segments;
  UpdateArgs args;

  Part(const Shard& whole, int64_t begin, int64_t end) {
    for (const Segment& segment : whole.segments) {
      const int64_t from = std::max(begin, segment.offset), to = std::min(end, segment.offset + segment.count);
      if (from >= to) continue;
      Segment part = segment;
      part.offset = from - begin, part.count = to - from, part.global_offset = from - segment.offset;
      segments.push_back(part);
    }
    args = whole.args;
    args.count = end - begin;
    args.segments = segments.data();
    args.segment_count = static_cast<int64_t>(segments.size());
    args.gradient = static_cast<const std::byte*>(args.gradient) + begin * element_bytes(args.gradient_dtype);
    if (args.master.whole != nullptr) args.master.whole += begin;
    if (args.master.copy != nullptr) args.master.copy = static_cast<uint16_t*>(args.master.copy) + begin;
    if (args.master.high != nullptr) args.master.high += begin, args.master.low += begin;
    for (int k = 0; k < kMaxStates; ++k) {
      args.states[k] = static_cast<std::byte*>(args.states[k]) + state_offset_bytes(args.moments, k, begin);
    }
  }
};

/// Performs four steps on one shard, and on the same data cut into different random parts at each step.
void expect_same_bits_for_every_partition(const Optimizer& optimizer, MasterForm form, DType moments,
                                          std::mt19937& random) {
  const auto segments = segments_of({1, 256, 255, 257, 3000, 17, 20000, 5, 768});
  const int64_t blocks = count_of(segments) / kBlockElements;
  Shard whole(segments, count_of(segments), form, DType::kBFloat16, moments);
  Shard cut(segments, count_of(segments), form, DType::kBFloat16, moments);
  for (int step = 1; step <= 4; ++step) {
    whole.step(highest_isa(), optimizer, step);
    cut.draw_gradient(static_cast<unsigned>(step));
    cut.set_moment_format(optimizer);
    for (int64_t begin = 0; begin < blocks;) {
      const auto end = std::min<int64_t>(blocks, begin + std::uniform_int_distribution<int64_t>(1, 40)(random));
      const Part part(cut, begin * kBlockElements, end * kBlockElements);
      update_range(highest_isa(), part.args, Shard::step_of(optimizer, step), 0, part.args.count);
      begin = end;
    }
  }
  EXPECT_TRUE(same_bits(whole, cut)) << name(optimizer);
}

TEST(Update, EveryPartitionIntoBlocksGivesTheSameBits) {
  std::mt19937 random(11);
  for (const Optimizer& optimizer : every_optimizer()) {
    for (const MasterForm form : kMasterForms) {
      for (const DType moments : {DType::kFloat32, DType::kBFloat16}) {
        expect_same_bits_for_every_partition(optimizer, form, moments, random);
      }
    }
  }
}

TEST(Update, RoundingOfBf16MomentsIsUnbiased) {
  // One step from zero with gradient 1: exp_avg should be 0.1. The nearest bf16 values are 2^-11 apart, and 80 % of the
  // elements round up. So the standard deviation is sqrt(0.8 * 0.2) * 2^-11. The tolerance is four standard errors of
  // the mean.
  constexpr int64_t kCount = 1 << 16;
  const auto segments = segments_of({kCount});
  Shard shard(segments, kCount, MasterForm::kWhole, DType::kFloat32, DType::kBFloat16);
  std::ranges::fill(shard.gradient, 1.0f);
  update_range(highest_isa(), shard.args, Shard::step_of(AdamW{}, 1, 1.0f), 0, kCount);
  const auto* exp_avg = reinterpret_cast<const uint16_t*>(shard.states[0].data());
  double sum = 0.0;
  int up = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    sum += static_cast<double>(bf16_to_float(exp_avg[i]));
    up += exp_avg[i] != exp_avg[0];
  }
  EXPECT_NEAR(sum / kCount, 0.1, 0.1 * 0x1p-8 * 4 * 0.5 / std::sqrt(kCount));
  EXPECT_GT(up, 0);
}

TEST(Update, StochasticRoundingKeepsExactValuesInfinityAndNan) {
  for (const uint32_t noise : {0u, 1u, 0x8000u, 0xffffu, 0xffffffffu}) {
    EXPECT_EQ(stochastic_bf16(1.0f, noise), 0x3f80);
    EXPECT_EQ(stochastic_bf16(-0.0f, noise), 0x8000);
    EXPECT_EQ(stochastic_bf16(std::numeric_limits<float>::infinity(), noise), 0x7f80);
    EXPECT_EQ(stochastic_bf16(std::numeric_limits<float>::quiet_NaN(), noise), 0x7fc0);
  }
  // This value is a quarter of the way to the next bf16 value, so it rounds up for noise of 0xc000 or more.
  EXPECT_EQ(stochastic_bf16(float_from_bits(0x3f804000u), 0xbfffu), 0x3f80);
  EXPECT_EQ(stochastic_bf16(float_from_bits(0x3f804000u), 0xc000u), 0x3f81);
  EXPECT_EQ(stochastic_bf16(float_from_bits(0xbf804000u), 0xc000u), 0xbf81);
}

TEST(Update, RejectsUnsupportedDtypes) {
  const auto segments = segments_of({10});
  Shard shard(segments, count_of(segments), MasterForm::kBf16Copy, DType::kFloat32);
  shard.args.gradient_dtype = DType::kFloat16;
  EXPECT_THROW(shard.step(highest_isa(), AdamW{}, 1), std::logic_error);
  shard.bind_args();
  shard.args.master.copy_dtype = DType::kFloat32;
  EXPECT_THROW(shard.step(highest_isa(), AdamW{}, 1), std::logic_error);
  Shard coded(segments, count_of(segments), MasterForm::kWhole, DType::kFloat32, DType::kUInt8);
  EXPECT_THROW(coded.step(highest_isa(), Lion{}, 1), std::logic_error);
}

}  // namespace
}  // namespace aliquot
