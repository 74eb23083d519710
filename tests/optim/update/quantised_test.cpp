// Checks AdamW with 8-bit moments against the published formulas in double, and against AdamW in fp32.

#include <gtest/gtest.h>
#include <iostream>
#include <random>

#include "optim/update/dynamic_code.h"
#include "tests/optim/shard.h"
#include "tests/optim/small_problem.h"
#include "tests/optim/update/published_code.h"

namespace aliquot {
namespace {

/// A block of weights with its moments. step() updates them by the published formulas, without quantization.
struct Block {
  std::vector<double> weights, means, squares;

  void step(const AdamW8bit& o, const std::vector<double>& gradients, int t) {
    const double beta1 = decimal(o.beta1), beta2 = decimal(o.beta2), lr = decimal(o.lr);
    for (size_t i = 0; i < weights.size(); ++i) {
      const double g = gradients[i];
      means[i] = beta1 * means[i] + (1.0 - beta1) * g;
      squares[i] = beta2 * squares[i] + (1.0 - beta2) * g * g;
      const double mean = means[i] / (1.0 - std::pow(beta1, t)), square = squares[i] / (1.0 - std::pow(beta2, t));
      weights[i] = weights[i] * (1.0 - lr * decimal(o.weight_decay)) - lr * mean / (std::sqrt(square) + decimal(o.eps));
    }
  }
};

double largest_magnitude(const std::vector<double>& values) {
  double most = 0.0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

/// Reads the stored codes and scales of a shard with one tensor, as a reader of a checkpoint does.
class StoredMoments {
 public:
  explicit StoredMoments(const Shard& shard) : shard_(shard) {}
  int code(int moment, size_t i) const { return reinterpret_cast<const uint8_t*>(shard_.states[2 * moment].data())[i]; }
  double scale(int moment, size_t i) const { return double{shard_.states[2 * moment + 1][i / kBlockElements]}; }
  double value(int moment, size_t i) const {
    return table_[moment][static_cast<size_t>(code(moment, i))] * scale(moment, i);
  }

 private:
  const Shard& shard_;
  const std::vector<double> table_[2] = {published_code(true), published_code(false)};
};

void expect_codes(const StoredMoments& stored, int moment, size_t first, const std::vector<double>& values) {
  static const std::vector<double> table[2] = {published_code(true), published_code(false)};
  const double scale = largest_magnitude(values);
  ASSERT_NEAR(stored.scale(moment, first), scale, scale * 1e-6);
  for (size_t i = 0; i < values.size(); ++i) {
    if (moment == 1 && values[i] < 1e-40) continue;  // fp32 underflows where double does not
    double tie = 0.0;
    int code = nearest_code(table[moment], scale == 0.0 ? 0.0 : values[i] / scale, &tie);
    if (moment == 1 && values[i] > 0.0) code = std::max(code, 1);
    ASSERT_LE(std::abs(stored.code(moment, first + i) - code), tie < 1e-3 ? 1 : 0)
        << "moment " << moment << " element " << first + i << " tie " << tie;
  }
}

TEST(AdamW8bit, FollowsItsFormula) {
  const AdamW8bit options{.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-6f, .weight_decay = 0.1f};
  const auto segments = segments_of({600});
  Shard shard(segments, 768, MasterForm::kWhole, DType::kFloat32);
  const StoredMoments stored(shard);
  for (int t = 1; t <= 30; ++t) {
    std::vector<Block> blocks;
    std::vector<std::vector<double>> gradients;
    shard.draw_gradient(static_cast<unsigned>(t));
    for (size_t first = 0; first < 600; first += kBlockElements) {
      Block& block = blocks.emplace_back();
      gradients.emplace_back();
      for (size_t i = first; i < std::min<size_t>(600, first + kBlockElements); ++i) {
        // Drop the large magnitudes of draw_gradient(). One in each block would make all other codes zero.
        shard.gradient[i] = std::abs(shard.gradient[i]) > 4.0f ? 0.0f : shard.gradient[i];
        block.weights.push_back(double{shard.whole[i]});
        // Before the first step every scale is 0, so every moment is 0.
        block.means.push_back(stored.value(0, i));
        block.squares.push_back(stored.value(1, i));
        gradients.back().push_back(double{shard.gradient[i]});
      }
    }
    shard.set_moment_format(options);
    update_range(available_isas().back(), shard.args, Shard::step_of(options, t, 1.0f), 0, 768);
    for (size_t b = 0; b < blocks.size(); ++b) {
      blocks[b].step(options, gradients[b], t);
      for (size_t i = 0; i < blocks[b].weights.size(); ++i) {
        ASSERT_NEAR(double{shard.whole[b * kBlockElements + i]}, blocks[b].weights[i], 3e-6) << "step " << t;
      }
      expect_codes(stored, 0, b * kBlockElements, blocks[b].means);
      expect_codes(stored, 1, b * kBlockElements, blocks[b].squares);
    }
  }
}

TEST(AdamW8bit, StatesAreCodesAndScales) {
  const auto specs = state_specs(AdamW8bit{});
  ASSERT_EQ(specs.size(), 4u);
  EXPECT_EQ(specs[0], (StateSpec{"exp_avg", DType::kUInt8, 1}));
  EXPECT_EQ(specs[1], (StateSpec{"exp_avg_scale", DType::kFloat32, kBlockElements}));
  EXPECT_EQ(specs[2], (StateSpec{"exp_avg_sq", DType::kUInt8, 1}));
  EXPECT_EQ(specs[3], (StateSpec{"exp_avg_sq_scale", DType::kFloat32, kBlockElements}));
  EXPECT_EQ(state_specs(AdamW8bit{}, DType::kBFloat16), specs);
  EXPECT_EQ(state_bytes(AdamW8bit{}, DType::kFloat32, 1024), 2 * 1024 + 2 * 4 * 4);
  EXPECT_EQ(state_offset_bytes(DType::kUInt8, 2, 512), 512);
  EXPECT_EQ(state_offset_bytes(DType::kUInt8, 3, 512), 8);
}

TEST(AdamW8bit, StochasticRoundingDependsOnTheSeed) {
  const auto segments = segments_of({4096});
  const AdamW8bit options{.rounding = Rounding::kStochastic};
  Shard one(segments, 4096, MasterForm::kWhole, DType::kFloat32),
      two(segments, 4096, MasterForm::kWhole, DType::kFloat32);
  one.step(Isa::kPlain, options, 1);
  two.draw_gradient(1);
  two.set_moment_format(options);
  UpdateStep step = Shard::step_of(options, 1);
  step.seed = 4;
  update_range(Isa::kPlain, two.args, step, 0, 4096);
  EXPECT_FALSE(same_bits(one.states[0], two.states[0]));
  EXPECT_TRUE(same_bits(one.states[1], two.states[1]));  // scales are not rounded stochastically
  EXPECT_TRUE(same_bits(one.whole, two.whole));          // rounded moments affect only later steps
}

/// Sets the gradient to magnitudes from 2^-30 to 1, so that every decade of the code is used.
void draw_wide_range(Shard& shard, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> exponent(-30.0f, 0.0f);
  for (size_t i = 0; i < shard.gradient.size(); ++i) {
    shard.gradient[i] = std::exp2(exponent(random)) * (random() % 2 == 0 ? 1.0f : -1.0f);
  }
}

TEST(AdamW8bit, EveryInstructionSetGivesTheSameCodes) {
  constexpr int64_t kCount = 1 << 18;
  for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
    const AdamW8bit options{.rounding = rounding};
    const auto step_on = [&](Isa isa, Shard& shard, int number) {
      draw_wide_range(shard, static_cast<unsigned>(number));
      shard.set_moment_format(options);
      update_range(isa, shard.args, Shard::step_of(options, number, 1.0f), 0, kCount);
    };
    Shard plain(segments_of({kCount}), kCount, MasterForm::kSplit, DType::kFloat32);
    for (int number = 1; number <= 3; ++number) step_on(Isa::kPlain, plain, number);
    for (const Isa isa : available_isas().subspan(1)) {
      Shard vector(segments_of({kCount}), kCount, MasterForm::kSplit, DType::kFloat32);
      for (int number = 1; number <= 3; ++number) step_on(isa, vector, number);
      EXPECT_TRUE(same_bits(plain, vector)) << name(isa);
    }
  }
}

/// Trains for 200 steps and returns the mean loss of the last ten.
double trained_loss(const Optimizer& optimizer, double* first = nullptr) {
  SmallProblem problem;
  Shard shard(segments_of({SmallProblem::kFirst, SmallProblem::kWeights - SmallProblem::kFirst}),
              SmallProblem::kWeights, MasterForm::kWhole, DType::kFloat32);
  shard.whole = problem.weights;
  shard.bind_args();
  shard.set_moment_format(optimizer);
  double last = 0.0;
  for (int t = 1; t <= 200; ++t) {
    const double loss = problem.loss(static_cast<unsigned>(t));
    if (t == 1 && first != nullptr) *first = loss;
    if (t > 190) last += loss / 10;
    shard.gradient = problem.gradient;
    shard.args.gradient = shard.gradient.data();
    update_range(best_isa(), shard.args, Shard::step_of(optimizer, t, 1.0f), 0, SmallProblem::kWeights);
    problem.weights = shard.whole;
  }
  return last;
}

TEST(AdamW8bit, ConvergesLikeAdamW) {
  double first = 0.0;
  const double adamw_loss = trained_loss(AdamW{.lr = 0.02f}, &first);
  std::cout << "loss " << first << " in step 1; after 200 steps " << adamw_loss << " with adamw";
  for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
    const double quantized_loss = trained_loss(AdamW8bit{.lr = 0.02f, .rounding = rounding});
    std::cout << ", " << quantized_loss << " with adamw8bit"
              << (rounding == Rounding::kNearest ? "" : ", stochastic\n");
    EXPECT_LT(adamw_loss, first / 10);
    EXPECT_NEAR(quantized_loss, adamw_loss, adamw_loss * 0.1);
  }
}

}  // namespace
}  // namespace aliquot
